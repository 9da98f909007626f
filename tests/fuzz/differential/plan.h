#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace lockstep::differential {

/// Activations are [samples, kWidth]; words of embeddings are 0 to kWords - 1.
inline constexpr std::int64_t kWidth = 4;
inline constexpr std::int64_t kWords = 6;

enum class Layout { kContiguous, kTransposed, kChannelsLast, kSliced };

struct ParameterPlan {
  std::vector<std::int64_t> sizes = {};
  at::ScalarType dtype = at::kFloat;
  Layout layout = Layout::kContiguous;
  bool is_trained = true;
  bool is_ignored = false;
  bool is_delayed = false;
  int hook_factor = 1;  ///< a tensor hook multiplies the gradient by it, where it is not 1
};

enum class OpKind {
  kLinear,       ///< v · pᵀ + second
  kMatmul,       ///< v · p
  kBias,         ///< v + p, by a view of the kind `view`
  kMultiply,     ///< v * p
  kScalar,       ///< v * p, p of shape []
  kSum,          ///< v + p.sum()
  kConvolution,  ///< v as [samples, 1, 2, 2]
  kEmbedding,    ///< v + rows of p, with a sparse gradient where `sparse`
  kComplex,      ///< v * Re p + Im p
  kWide,         ///< v + a number from large p, `second` and `third`; the last two by views
  kBuffer,       ///< v + a buffer, which each forward pass in training mode changes
  kBatchNorm,
  kSquare,
  kProduct,  ///< v * the first value
};

/// How a parameter of the shape of an activation is added to it.
enum class View { kPlain, kUnsqueeze, kView, kReshape, kSqueeze, kExpand };

struct OpPlan {
  OpKind kind = OpKind::kLinear;
  int parameter = -1;
  int second = -1;
  int third = -1;
  View view = View::kPlain;
  bool sparse = false;
  bool adds_input = false;              ///< a residual connection
  bool is_side = false;                 ///< takes the first value, is added to the last
  bool is_checkpointed = false;         ///< recomputed in backward
  int uses = 1;                         ///< one after the other
  int later_uses = 1;                   ///< from the second step on
  std::vector<unsigned> left_out = {};  ///< a bit a rank, for each step
  unsigned delays = 0;                  ///< a bit a rank that sleeps here in backward
};

/// What the program does with all .grad.
enum class GradAction { kKeep, kSetToNone, kZeroInPlace, kClone, kAssignZeros, kAssignNines };
bool gives_up(GradAction action);

struct PassPlan {
  bool exchanges = true;
  bool guards_forward = true;  ///< no_sync spans forward, too
  bool reuses_graph = false;   ///< a second backward pass over the graph of the last pass
  int forwards = 1;
  unsigned reaches_nothing =
      0;  ///< a bit a rank; all or none where a pass without weight exchanges
  bool takes_gradients = false;           ///< torch::autograd::grad, which leaves .grad alone
  bool evaluates = false;                 ///< fully sharded: between forward and backward
  GradAction action = GradAction::kKeep;  ///< before
  std::vector<int> samples = {};          ///< of each rank
  std::vector<bool> has_data = {};        ///< of each rank, in join
  std::vector<double> weights = {};       ///< of each rank, where the plan is weighted
  unsigned delays = 0;                    ///< a bit a rank that sleeps before backward
};

/// Whether a rank has no samples.
bool has_empty_batch(const PassPlan& pass);

struct StepPlan {
  std::vector<PassPlan> passes = {};
  unsigned evaluates = 0;  ///< a bit a rank that evaluates after the step
};

enum class HookPlan {
  kNone,
  kAllReduce,
  kHalve,
  kHalf,
  kBFloat16,
  kNoop,
  kLocalSgd,
  kPowerSgd,
  kQuantize
};
enum class OptimizerPlan {
  kSgd,
  kMomentum,
  kAdam,
  kAdamW,
  kRmsprop,
  kAdagrad,
  // Only Lockstep has these.
  kNAdam,
  kRAdam,
  kAdamax,
  kAdadelta,
  kCenteredRmsprop,
  kAmsgrad,
  kLion,
  kLamb
};
constexpr OptimizerPlan kLastOfLibTorch = OptimizerPlan::kAdagrad;
constexpr OptimizerPlan kLastOptimizer = OptimizerPlan::kLamb;
enum class ClipPlan { kNone, kNorm, kKnownNorm, kInfinityNorm, kValue };

struct OptionsPlan {
  std::vector<double> caps_mb = {};
  bool caps_as_list = false;
  bool init_sync = true;
  bool forward_sync_buffers = true;
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool gradient_as_bucket_view = true;
  bool gradient_norm = false;
  bool measure_exchange = false;
  bool step_timer = false;
  int check_replicas_every = 0;
  std::optional<at::ScalarType> exchange_dtype = {};
  HookPlan hook = HookPlan::kNone;
  int local_sgd_from = 0;
  bool one_copy_per_machine = false;
  int replicas = 0;                 ///< of a fully sharded model; 0: DistributedDataParallel
  bool replicas_alternate = false;  ///< ranks take turns in them
  int reshard_after_forward = 1;    ///< 0: false, 1: true, else the number

  bool operator==(const OptionsPlan&) const = default;
};

/// A submodule of a fully sharded model: the operators `first` to `last`.
struct UnitPlan {
  int first = 0;
  int last = 0;
};

enum class Backend { kShm, kGloo, kHierarchical };

/// A training run, as a value: what a seed stands for.
struct Plan {
  std::uint64_t seed = 0;
  int ranks = 1;   ///< or logical shards
  int shards = 0;  ///< as many as `ranks`, on any number of processes; 0: a rank is a process
  Backend backend = Backend::kShm;
  int threads = 1;
  at::ScalarType compute = at::kFloat;
  std::vector<ParameterPlan> parameters = {};
  std::vector<OpPlan> ops = {};
  std::vector<UnitPlan> units = {};  ///< outer ones before those within them
  bool has_buffer = false;
  bool syncs_batch_norm = false;
  bool penalizes_parameters = false;  ///< the loss has a term of a parameter alone
  bool double_backward = false;       ///< the last pass of a step is one of the gradients' squares
  bool penalizes_gradients = false;   ///< the loss has a term of autograd::grad(…, create_graph)
  bool is_weighted = false;
  bool joins = false;
  int accumulation_steps = 1;  ///< of join
  OptionsPlan options = {};
  OptimizerPlan optimizer = OptimizerPlan::kSgd;
  bool is_sharded = false;
  bool is_of_lockstep = false;  ///< the optimizer is not LibTorch's
  ClipPlan clip = ClipPlan::kNone;
  int delay_us = 0;
  std::vector<StepPlan> steps = {};

  bool keeps_replicas_equal() const {
    return options.hook != HookPlan::kNoop && options.hook != HookPlan::kLocalSgd;
  }
  bool is_left_out(const OpPlan& op, int step, int rank) const {
    return step < static_cast<int>(op.left_out.size()) && (op.left_out[step] >> rank & 1) != 0;
  }
  bool has(OpKind kind) const;
  bool reaches_nothing(const PassPlan& pass, int rank) const {
    return (pass.reaches_nothing >> rank & 1) != 0;
  }
  int uses(const OpPlan& op, int step) const { return step == 0 ? op.uses : op.later_uses; }
};

/// As text, one line a part: for people, and equal where plans are equal.
std::string describe(const Plan& plan);

/// What the exchange weighs, after the last time that gradients were given up.
struct ExchangeGroup {
  double weight = 0;  ///< Σ over ranks and passes, where the plan is weighted
  int ranks_with_data = 0;
};
ExchangeGroup group_of(const Plan& plan, int step, int pass);

/// What the loss of a pass is multiplied by so that averages of small integers are integers.
double multiplier(const Plan& plan, int step, int pass);

/// Whether all ranks come to the same units in the same order, in forward and backward.
bool uses_units_alike(const Plan& plan);
/// The innermost unit of an operator, and of all operators with a parameter; -1: the model.
int unit_of_op(const Plan& plan, int op);
int unit_of_parameter(const Plan& plan, int parameter);

/// Whether Lockstep takes such a training run: its documented limits, nothing else.
bool is_allowed(const Plan& plan);

}  // namespace lockstep::differential
