#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

namespace lockstep {

inline namespace internal {
class GroupStep;
}

// Names and defaults of the options are those of torch.optim. `state_dtype`, which every optimizer
// has: float32 keeps the state of bfloat16 and float16 parameters in float32. Empty: in the
// parameter's dtype, as PyTorch does. The arithmetic is in float32 either way.

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

struct AdamOptions {
  double lr = 1e-3;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

/// Weight decay is decoupled.
struct AdamWOptions {
  double lr = 1e-3;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

struct NAdamOptions {
  double lr = 2e-3;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum_decay = 4e-3;
  bool decoupled_weight_decay = false;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

struct RAdamOptions {
  double lr = 1e-3;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled_weight_decay = false;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

struct AdamaxOptions {
  double lr = 2e-3;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

struct AdadeltaOptions {
  double lr = 1.0;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

/// Chen et al., arXiv 2302.06675, algorithm 2. Weight decay is decoupled.
struct LionOptions {
  double lr = 1e-4;
  std::tuple<double, double> betas = {0.9, 0.99};
  double weight_decay = 0;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

/// You et al., arXiv 1904.00962, algorithm 2, with the identity for phi. Each parameter is a layer;
/// its trust ratio is 1 where its norm, or its update's, is 0.
struct LAMBOptions {
  double lr = 1e-3;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-6;
  double weight_decay = 1e-2;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

/// Options for a parameter group of its own:
///   torch::optim::OptimizerParamGroup(parameters, group_options(AdamWOptions{.lr = 1e-4}))
/// The group takes none of the optimizer's options. Errors: UsageError for options out of range.
template <class Options>
std::unique_ptr<torch::optim::OptimizerOptions> group_options(const Options& options);

/// What the optimizers below have in common.
/// Errors and threads: as FusedOptimizerOf.
class FusedOptimizer : public torch::optim::Optimizer {
 public:
  /// Updates every parameter that has a gradient.
  /// Errors: UsageError for a parameter or gradient that the optimizer does not support, for one
  /// whose shape differs from its gradient's or its state's, and what `closure` throws; nothing is
  /// updated then.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Hides torch::optim::Optimizer's. A call through `torch::optim::Optimizer&` drops the group's
  /// options.
  /// Errors: UsageError when the group's options are another optimizer's.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// What Python's optimizer.state_dict() of the same optimizer gives, for lockstep::save() and
  /// torch.load. The tensors share the optimizer's memory.
  c10::IValue state_dict() const;
  /// Takes over a state dict of this optimizer, of LibTorch's or of Python's; tensors are copied.
  /// All or nothing. Errors: UsageError naming what differs.
  void load_state_dict(const c10::IValue& values);

  /// In the format of LibTorch's optimizers: its SGD, Adam, AdamW, Adagrad and RMSprop read these
  /// archives.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Takes over an archive of save(), or of LibTorch's optimizer of the same name. Archives of
  /// LibTorch's Adam and AdamW look the same. All or nothing.
  /// Errors: UsageError for an archive of another optimizer, model or format, naming what differs.
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  FusedOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 std::unique_ptr<torch::optim::OptimizerOptions> defaults);

 private:
  virtual std::unique_ptr<GroupStep> prepare_group(std::size_t group) = 0;
};

/// An optimizer that reads and writes each element once a step: SGD, Adam, AdamW and Adagrad by
/// ATen's fused kernels, so that the bits are those of torch.optim with fused=True, the others by
/// Lockstep's own. LAMB, whose step depends on norms, reads its state twice.
///
///   lockstep::AdamW optimizer(model->parameters(), {.lr = 1e-3, .weight_decay = 0.1});
///
/// Parameters: float32, float64, bfloat16 or float16, of any shape, layout and mixture; on a CUDA
/// device by SGD, Adam, AdamW and Adagrad, with the state in the parameter's dtype. Sparse
/// gradients: SGD without momentum and weight decay, Adagrad without weight decay.
/// A torch::optim::Optimizer to Accelerator, Trainer, ShardedOptimizer, snapshots, schedulers.
/// Threads: one at a time; step() uses LibTorch's threads.
/// Lifetime: keeps the parameters alive. Its state belongs to their addresses.
/// Errors: UsageError for options out of range and, from step(), for parameters and gradients that
/// the optimizer does not support, naming optimizer and parameter; nothing is updated then.
template <class Options>
class FusedOptimizerOf : public FusedOptimizer {
 public:
  explicit FusedOptimizerOf(std::vector<at::Tensor> parameters, const Options& options = {});
  explicit FusedOptimizerOf(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                            const Options& options = {});
  /// With a learning rate alone. A template, so that {} means options.
  template <std::same_as<double> Rate>
  FusedOptimizerOf(std::vector<at::Tensor> parameters, Rate lr)
      : FusedOptimizerOf(std::move(parameters), Options{.lr = lr}) {}

  /// Of a parameter group.
  /// Errors: UsageError where there is no such group; from set_options() also for options out of
  /// range.
  Options options(std::size_t group = 0) const;
  void set_options(const Options& options, std::size_t group = 0);

 private:
  std::unique_ptr<GroupStep> prepare_group(std::size_t group) override;
};

/// In the place of optimizer.step() for an optimizer of LibTorch's: where ranks have one copy of
/// its parameters per machine, each rank updates its share of them. Accelerator, Trainer and
/// GradScaler call it. SGD, Adam, AdamW, RMSprop and Adagrad; for others, and ordinary parameters,
/// as step().
/// Errors: UsageError for one that needs more of a parameter than a share, as LBFGS. PeerLost where
/// a rank is lost; its share may then be half updated (docs/one-copy.md).
void step_optimizer(torch::optim::Optimizer& optimizer);

using SGD = FusedOptimizerOf<SGDOptions>;
using Adam = FusedOptimizerOf<AdamOptions>;
using AdamW = FusedOptimizerOf<AdamWOptions>;
using Adagrad = FusedOptimizerOf<AdagradOptions>;
using NAdam = FusedOptimizerOf<NAdamOptions>;
using RAdam = FusedOptimizerOf<RAdamOptions>;
using Adamax = FusedOptimizerOf<AdamaxOptions>;
using Adadelta = FusedOptimizerOf<AdadeltaOptions>;
using RMSprop = FusedOptimizerOf<RMSpropOptions>;
using Lion = FusedOptimizerOf<LionOptions>;
using LAMB = FusedOptimizerOf<LAMBOptions>;

}  // namespace lockstep
