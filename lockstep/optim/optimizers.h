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

// Names and defaults of options are those of torch.optim. Every optimizer has `state_dtype`:
// float32 keeps the state of bfloat16 and float16 parameters in float32; empty keeps it in the
// parameter's dtype, as PyTorch does. The arithmetic on these parameters is in float32 either way.

/// Options of SGD; names and defaults as in torch.optim.SGD.
struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

/// Options of Adam; names and defaults as in torch.optim.Adam.
struct AdamOptions {
  double lr = 1e-3;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

/// Options of AdamW; names and defaults as in torch.optim.AdamW. Weight decay is decoupled.
struct AdamWOptions {
  double lr = 1e-3;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

/// Options of Adagrad; names and defaults as in torch.optim.Adagrad.
struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

/// Options of NAdam; names and defaults as in torch.optim.NAdam.
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

/// Options of RAdam; names and defaults as in torch.optim.RAdam.
struct RAdamOptions {
  double lr = 1e-3;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled_weight_decay = false;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

/// Options of Adamax; names and defaults as in torch.optim.Adamax.
struct AdamaxOptions {
  double lr = 2e-3;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

/// Options of Adadelta; names and defaults as in torch.optim.Adadelta.
struct AdadeltaOptions {
  double lr = 1.0;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

/// Options of RMSprop; names and defaults as in torch.optim.RMSprop.
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

/// Options of Lion. Weight decay is decoupled.
/// Algorithm: Chen et al., arXiv 2302.06675, algorithm 2.
struct LionOptions {
  double lr = 1e-4;
  std::tuple<double, double> betas = {0.9, 0.99};
  double weight_decay = 0;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

/// Options of LAMB. Each parameter is a layer; its trust ratio is 1 if its norm or its update's is
/// 0.
/// Algorithm: You et al., arXiv 1904.00962, algorithm 2, with the identity for phi.
struct LAMBOptions {
  double lr = 1e-3;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-6;
  double weight_decay = 1e-2;
  bool maximize = false;
  std::optional<at::ScalarType> state_dtype = {};
};

/// Options of one parameter group, which replace the optimizer's:
///
///     torch::optim::OptimizerParamGroup(parameters, group_options(AdamWOptions{.lr = 1e-4}))
///
/// Errors: UsageError for options out of range.
template <class Options>
std::unique_ptr<torch::optim::OptimizerOptions> group_options(const Options& options);

/// Base class of the optimizers below.
/// Threads: as FusedOptimizerOf.
/// Errors: as FusedOptimizerOf.
class FusedOptimizer : public torch::optim::Optimizer {
 public:
  /// Updates every parameter that has a gradient.
  /// Errors: UsageError for a parameter or gradient that the optimizer does not support, and for a
  /// gradient or state of another shape; what `closure` throws. Nothing is updated then.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Adds a parameter group. It hides torch::optim::Optimizer's, which drops the group's options:
  /// do not call it through `torch::optim::Optimizer&`.
  /// Errors: UsageError if the group's options are another optimizer's.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// The state dict of the same optimizer in Python, for lockstep::save() and torch.load. The
  /// tensors share the optimizer's memory.
  c10::IValue state_dict() const;
  /// Loads a state dict of this optimizer, of LibTorch's or of Python's, completely, or throws and
  /// changes nothing. Copies the tensors.
  /// Errors: UsageError with what differs.
  void load_state_dict(const c10::IValue& values);

  /// Writes an archive in the format of LibTorch's optimizers; LibTorch's SGD, Adam, AdamW, Adagrad
  /// and RMSprop read it.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Loads an archive of save() or of LibTorch's optimizer of the same name completely, or throws
  /// and changes nothing. Archives of LibTorch's Adam and AdamW are indistinguishable.
  /// Errors: UsageError for an archive of another optimizer, model or format, with what differs.
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  FusedOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 std::unique_ptr<torch::optim::OptimizerOptions> defaults);

 private:
  virtual std::unique_ptr<GroupStep> prepare_group(std::size_t group) = 0;
};

/// An optimizer that reads and writes each element once per step. SGD, Adam, AdamW and Adagrad use
/// ATen's fused kernels and give the bits of torch.optim with fused=True; the others use Lockstep's
/// kernels. LAMB, whose step depends on norms, reads its state twice.
///
///     lockstep::AdamW optimizer(model->parameters(), {.lr = 1e-3, .weight_decay = 0.1});
///
/// Parameters: float32, float64, bfloat16 or float16, of any shape and layout, also mixed. CUDA
/// parameters: SGD, Adam, AdamW and Adagrad, with the state in the parameter's dtype. Sparse
/// gradients: SGD without momentum and weight decay, Adagrad without weight decay. Accelerator,
/// Trainer, ShardedOptimizer, snapshots and schedulers accept it as a torch::optim::Optimizer.
/// Threads: one at a time; step() uses LibTorch's threads.
/// Lifetime: keeps the parameters alive; its state belongs to their addresses.
/// Errors: UsageError for options out of range; from step() for parameters and gradients that the
/// optimizer does not support, with optimizer and parameter. Nothing is updated then.
template <class Options>
class FusedOptimizerOf : public FusedOptimizer {
 public:
  explicit FusedOptimizerOf(std::vector<at::Tensor> parameters, const Options& options = {});
  explicit FusedOptimizerOf(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                            const Options& options = {});
  /// With default options but the learning rate. A template, so that {} means options.
  template <std::same_as<double> Rate>
  FusedOptimizerOf(std::vector<at::Tensor> parameters, Rate lr)
      : FusedOptimizerOf(std::move(parameters), Options{.lr = lr}) {}

  /// Options of a parameter group.
  /// Errors: UsageError if there is no such group.
  Options options(std::size_t group = 0) const;
  /// Replaces the options of a parameter group.
  /// Errors: UsageError if there is no such group, and for options out of range.
  void set_options(const Options& options, std::size_t group = 0);

 private:
  std::unique_ptr<GroupStep> prepare_group(std::size_t group) override;
};

/// Steps an optimizer of LibTorch: with one_copy_per_machine each rank updates its shard of the
/// parameters; other parameters as optimizer.step(). Accelerator, Trainer and GradScaler call it.
/// Supports SGD, Adam, AdamW, RMSprop and Adagrad.
/// Errors: UsageError for an optimizer that needs whole parameters, such as LBFGS, with
/// one_copy_per_machine. PeerLost if a rank is lost; its shard may then be partly updated
/// (docs/one-copy.md).
void step_optimizer(torch::optim::Optimizer& optimizer);

/// Stochastic gradient descent, with momentum and Nesterov momentum: torch.optim.SGD.
using SGD = FusedOptimizerOf<SGDOptions>;
/// torch.optim.Adam.
using Adam = FusedOptimizerOf<AdamOptions>;
/// torch.optim.AdamW.
using AdamW = FusedOptimizerOf<AdamWOptions>;
/// torch.optim.Adagrad.
using Adagrad = FusedOptimizerOf<AdagradOptions>;
/// torch.optim.NAdam.
using NAdam = FusedOptimizerOf<NAdamOptions>;
/// torch.optim.RAdam.
using RAdam = FusedOptimizerOf<RAdamOptions>;
/// torch.optim.Adamax.
using Adamax = FusedOptimizerOf<AdamaxOptions>;
/// torch.optim.Adadelta.
using Adadelta = FusedOptimizerOf<AdadeltaOptions>;
/// torch.optim.RMSprop.
using RMSprop = FusedOptimizerOf<RMSpropOptions>;
/// Lion; see LionOptions.
using Lion = FusedOptimizerOf<LionOptions>;
/// LAMB; see LAMBOptions.
using LAMB = FusedOptimizerOf<LAMBOptions>;

}  // namespace lockstep
