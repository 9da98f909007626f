#include "lockstep/optim/internal/group_update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/optim/internal/update_range.h"

namespace lockstep::inline internal {
namespace {

/// A parameter that is updated. `parameter` and `gradient` are the optimizer's own tensors unless
/// those are not dense in memory, or not in the same order: then copies that are.
struct Target {
  std::size_t place = 0;
  at::Tensor original;
  at::Tensor parameter;
  at::Tensor gradient;
  /// Those that the options need, by the description's order.
  std::array<at::Tensor, kMostStates> states = {};
  DescribedState* state = nullptr;
  bool has_new_momentum = false;
  bool is_batched = false;
};

bool is_sparse(const at::Tensor& gradient) {
  return gradient.layout() == at::kSparse;
}

bool has_same_order(const at::Tensor& a, const at::Tensor& b) {
  return a.strides() == b.strides() || (a.is_contiguous() && b.is_contiguous());
}

at::Tensor in_order_of(const at::Tensor& tensor, const at::Tensor& model, at::ScalarType dtype) {
  at::Tensor copy = at::empty_like(model, model.options().dtype(dtype));
  copy.copy_(tensor);
  return copy;
}

at::Tensor step_tensor(std::int64_t step, at::Device device) {
  return at::scalar_tensor(static_cast<double>(step), at::TensorOptions(at::kFloat).device(device));
}

/// LibTorch counts no change that a kernel makes.
void note_change(const at::Tensor& parameter) {
  if (!parameter.is_inference()) parameter.unsafeGetTensorImpl()->bump_version();
}

/// What PyTorch's optimizers do with sparse gradients.
bool supports_sparse(const SGDOptions& options) {
  return options.momentum == 0 && options.weight_decay == 0;
}
bool supports_sparse(const AdagradOptions& options) {
  return options.weight_decay == 0;
}
template <class Options>
bool supports_sparse(const Options&) {
  return false;
}

/// Tensors of one device, dtype and step for one call of a fused kernel of ATen's.
struct Batch {
  at::Device device;
  at::ScalarType dtype;
  std::int64_t step;
  std::vector<const Target*> targets = {};
  std::vector<at::Tensor> parameters = {}, gradients = {}, steps = {};
  std::array<std::vector<at::Tensor>, kMostStates> states = {};
};

template <class Options>
class GroupUpdate final : public GroupStep {
 public:
  using Kind = Described<Options>;

  GroupUpdate(torch::optim::Optimizer& optimizer, std::size_t group, const Options& options)
      : optimizer_(optimizer), group_(group), options_(options) {
    const c10::NoGradGuard no_grad;
    collect();
    for (Target& target : targets_) prepare(target);
  }

  void run() override {
    const c10::NoGradGuard no_grad;
    for (Target& target : targets_) {
      begin(target);
      if (is_sparse(target.gradient)) {
        update_sparse(target);
      } else {
        update_with(target, options_);
      }
      if (!target.is_batched) finish(target);
    }
    for (const Batch& batch : batches_) {
      run_fused(batch, options_);
      for (const Target* const target : batch.targets) finish(*target);
    }
  }

 private:
  void collect() {
    const std::vector<at::Tensor>& parameters = optimizer_.param_groups()[group_].params();
    for (std::size_t place = 0; place < parameters.size(); ++place) {
      const at::Tensor& gradient = parameters[place].grad();
      if (!gradient.defined()) continue;
      Target& target = targets_.emplace_back();
      target.place = place;
      target.original = target.parameter = parameters[place];
      target.gradient = gradient;
      check(target);
    }
  }

  void check(const Target& target) const {
    const at::Tensor& parameter = target.parameter;
    const at::ScalarType dtype = parameter.scalar_type();
    if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kBFloat16 &&
        dtype != at::kHalf) {
      refuse(target,
             concat("is ", dtype, "; supported are float32, float64, bfloat16 and float16"));
    }
    // Kernels take pointers and one number of elements for all.
    if (target.gradient.sizes() != parameter.sizes()) {
      refuse(target,
             concat("has shape ", parameter.sizes(), ", its gradient ", target.gradient.sizes(),
                    "; call zero_grad() and backward() after the parameter's shape changes"));
    }
    check_state(target);
    if (is_sparse(target.gradient)) {
      if (supports_sparse(options_)) return;
      refuse(target, concat("has a sparse gradient, which ", Kind::kName,
                            " does not support with these options; use SGD without momentum and "
                            "weight_decay, Adagrad without weight_decay, or dense gradients"));
    }
    if (target.gradient.layout() != at::kStrided || parameter.layout() != at::kStrided) {
      refuse(target, concat("has layout ", parameter.layout(), ", its gradient ",
                            target.gradient.layout(), "; only dense ones are supported"));
    }
    if (target.gradient.scalar_type() != dtype || target.gradient.device() != parameter.device()) {
      refuse(target, concat("is ", dtype, " on ", parameter.device(), ", its gradient ",
                            target.gradient.scalar_type(), " on ", target.gradient.device(),
                            "; convert the gradient"));
    }
    const bool is_offered = parameter.is_cpu() || (Kind::kIsFused && parameter.is_cuda() &&
                                                   state_dtype(parameter) == dtype);
    if (!is_offered) {
      refuse(target, concat("is on ", parameter.device(),
                            "; on a CUDA device use SGD, Adam, AdamW or Adagrad without "
                            "state_dtype, else the CPU"));
    }
  }

  void check_state(const Target& target) const {
    const DescribedState* const state = find_state(target);
    if (state == nullptr) return;
    for (std::size_t k = 0; k < state->tensors.size(); ++k) {
      const at::Tensor& tensor = state->tensors[k];
      if (!tensor.defined() || tensor.sizes() == target.parameter.sizes()) continue;
      refuse(target, concat("has shape ", target.parameter.sizes(), ", its state '",
                            state->description->tensors[k], "' ", tensor.sizes(),
                            "; make a new optimizer after the parameter's shape changes"));
    }
  }

  DescribedState* find_state(const Target& target) const {
    const auto found = optimizer_.state().find(target.original.unsafeGetTensorImpl());
    return found == optimizer_.state().end() ? nullptr
                                             : static_cast<DescribedState*>(found->second.get());
  }

  [[noreturn]] void refuse(const Target& target, const std::string& reason) const {
    throw UsageError(
        concat(Kind::kName, "::step: parameter ", target.place, " of group ", group_, " ", reason));
  }

  at::ScalarType state_dtype(const at::Tensor& parameter) const {
    const bool is_low =
        parameter.scalar_type() == at::kBFloat16 || parameter.scalar_type() == at::kHalf;
    return is_low ? options_.state_dtype.value_or(parameter.scalar_type())
                  : parameter.scalar_type();
  }

  /// All that may fail, before anything is written.
  void prepare(Target& target) const {
    if (!is_sparse(target.gradient)) {
      // Kernels read memory, in which a view that negates is not negated.
      target.parameter = target.parameter.resolve_neg();
      target.gradient = target.gradient.resolve_neg();
      if (!target.parameter.is_non_overlapping_and_dense()) {
        target.parameter = target.parameter.contiguous();
      }
      if (!has_same_order(target.gradient, target.parameter)) {
        target.gradient =
            in_order_of(target.gradient, target.parameter, target.parameter.scalar_type());
      }
    }
    const DescribedState* const state = find_state(target);
    for (std::size_t k = 0; k < Kind::tensors().size(); ++k) {
      if (!needs_state(k)) continue;
      const at::Tensor kept = state == nullptr ? at::Tensor() : state->tensors[k];
      target.states[k] = fitting_state(target, kept);
    }
  }

  bool needs_state(std::size_t k) const {
    if constexpr (std::is_same_v<Options, SGDOptions>) return has_momentum();
    if constexpr (requires { options_.amsgrad; }) return k < 2 || options_.amsgrad;
    if constexpr (std::is_same_v<Options, RMSpropOptions>) {
      return k == 0 || (k == 1 ? options_.momentum > 0 : options_.centered);
    }
    return true;
  }

  /// Makes the state the optimizer's, and counts the step.
  void begin(Target& target) const {
    const bool keeps_state = !std::is_same_v<Options, SGDOptions> || has_momentum();
    if (!keeps_state) return;
    auto& state = optimizer_.state()[target.original.unsafeGetTensorImpl()];
    if (!state) state = std::make_unique<DescribedState>(description_of<Options>());
    target.state = static_cast<DescribedState*>(state.get());
    target.has_new_momentum = !target.state->tensors[0].defined();
    for (std::size_t k = 0; k < kMostStates; ++k) {
      if (!target.states[k].defined()) continue;
      // A parameter that occurs twice has one state.
      at::Tensor& kept = target.state->tensors[k];
      if (fits(target, kept)) target.states[k] = kept;
      kept = target.states[k];
    }
    ++target.state->step;
  }

  static void finish(const Target& target) {
    if (!target.parameter.is_same(target.original)) target.original.copy_(target.parameter);
    note_change(target.original);
  }

  bool has_momentum() const {
    if constexpr (requires { options_.momentum; }) return options_.momentum != 0;
    return false;
  }

  bool fits(const Target& target, const at::Tensor& kept) const {
    return kept.defined() && kept.scalar_type() == state_dtype(target.parameter) &&
           kept.device() == target.parameter.device() && has_same_order(kept, target.parameter);
  }

  /// A tensor of the state, made where it is missing and put in order where it is not.
  at::Tensor fitting_state(const Target& target, const at::Tensor& kept) const {
    if (fits(target, kept)) return kept;
    const at::ScalarType dtype = state_dtype(target.parameter);
    if (kept.defined()) return in_order_of(kept, target.parameter.detach(), dtype);
    double initial = 0;
    if constexpr (requires { options_.initial_accumulator_value; }) {
      initial = options_.initial_accumulator_value;
    }
    return at::full_like(target.parameter.detach(), initial,
                         target.parameter.options().dtype(dtype).requires_grad(false));
  }

  UpdateRange range_of(const Target& target) const {
    UpdateRange range{.dtype = target.parameter.scalar_type(),
                      .state_dtype = state_dtype(target.parameter),
                      .parameter = target.parameter.data_ptr(),
                      .gradient = target.gradient.const_data_ptr(),
                      .states = {},
                      .elements = target.parameter.numel(),
                      .maximize = options_.maximize};
    for (std::size_t k = 0; k < kMostStates; ++k) {
      if (target.states[k].defined()) range.states[k] = target.states[k].data_ptr();
    }
    return range;
  }

  /// By ATen's kernel for many tensors, or by one of ours where ATen has none.
  bool joins_batch(const Target& target) const {
    if constexpr (std::is_same_v<Options, SGDOptions>) {
      const at::Tensor& parameter = target.parameter;
      if (parameter.is_cpu() && has_momentum() && loses_momentum(parameter.scalar_type())) {
        return false;
      }
    }
    return state_dtype(target.parameter) == target.parameter.scalar_type();
  }
  void add_to_batch(Target& target, std::int64_t step) {
    const at::Device device = target.parameter.device();
    const at::ScalarType dtype = target.parameter.scalar_type();
    auto batch = std::ranges::find_if(batches_, [&](const Batch& one) {
      return one.device == device && one.dtype == dtype && one.step == step;
    });
    if (batch == batches_.end()) {
      batch =
          batches_.insert(batches_.end(), Batch{.device = device, .dtype = dtype, .step = step});
    }
    batch->parameters.push_back(target.parameter);
    batch->gradients.push_back(target.gradient);
    batch->steps.push_back(batch->steps.empty() ? step_tensor(step, device) : batch->steps[0]);
    for (std::size_t k = 0; k < kMostStates; ++k) {
      if (target.states[k].defined()) batch->states[k].push_back(target.states[k]);
    }
    batch->targets.push_back(&target);
    target.is_batched = true;
  }

  // SGD has no count of steps: here it says whether the momentum is still to be made.
  void update_with(Target& target, const SGDOptions& options) {
    const bool is_first = has_momentum() && target.has_new_momentum;
    if (joins_batch(target)) return add_to_batch(target, is_first ? 1 : 0);
    update_range(SgdUpdate{.lr = options.lr,
                           .momentum = options.momentum,
                           .dampening = options.dampening,
                           .weight_decay = options.weight_decay,
                           .nesterov = options.nesterov,
                           .is_first_step = is_first},
                 range_of(target));
  }
  static void run_fused(const Batch& batch, const SGDOptions& options) {
    at::_fused_sgd_(batch.parameters, batch.gradients, batch.states[0], options.weight_decay,
                    options.momentum, options.lr, options.dampening, options.nesterov,
                    options.maximize, /*is_first_step=*/batch.step == 1);
  }

  template <class AdamLike>
  void update_adam(Target& target, const AdamLike& options) {
    if (joins_batch(target)) return add_to_batch(target, target.state->step);
    update_range(AdamUpdate{.lr = options.lr,
                            .beta1 = std::get<0>(options.betas),
                            .beta2 = std::get<1>(options.betas),
                            .eps = options.eps,
                            .weight_decay = options.weight_decay,
                            .is_decoupled = Kind::kIsDecoupled,
                            .step = target.state->step},
                 range_of(target));
  }
  void update_with(Target& target, const AdamOptions& options) { update_adam(target, options); }
  void update_with(Target& target, const AdamWOptions& options) { update_adam(target, options); }
  static void run_fused(const Batch& batch, const AdamOptions& options) {
    at::_fused_adam_(batch.parameters, batch.gradients, batch.states[0], batch.states[1],
                     batch.states[2], batch.steps, options.lr, std::get<0>(options.betas),
                     std::get<1>(options.betas), options.weight_decay, options.eps, options.amsgrad,
                     options.maximize);
  }
  static void run_fused(const Batch& batch, const AdamWOptions& options) {
    at::_fused_adamw_(batch.parameters, batch.gradients, batch.states[0], batch.states[1],
                      batch.states[2], batch.steps, options.lr, std::get<0>(options.betas),
                      std::get<1>(options.betas), options.weight_decay, options.eps,
                      options.amsgrad, options.maximize);
  }

  void update_with(Target& target, const AdagradOptions& options) {
    if (joins_batch(target)) return add_to_batch(target, target.state->step);
    update_range(AdagradUpdate{.lr = options.lr,
                               .lr_decay = options.lr_decay,
                               .weight_decay = options.weight_decay,
                               .eps = options.eps,
                               .step = target.state->step},
                 range_of(target));
  }
  static void run_fused(const Batch& batch, const AdagradOptions& options) {
    at::_fused_adagrad_(batch.parameters, batch.gradients, batch.states[0], batch.steps, options.lr,
                        options.lr_decay, options.weight_decay, options.eps, options.maximize);
  }

  template <class Other>
  static void run_fused(const Batch&, const Other&) {}

  void update_with(Target& target, const NAdamOptions& options) {
    const auto step = static_cast<double>(target.state->step);
    const double beta1 = std::get<0>(options.betas);
    const auto momentum_at = [&](double at_step) {
      return beta1 * (1.0 - 0.5 * std::pow(0.96, at_step * options.momentum_decay));
    };
    const double mu = momentum_at(step);
    // Python keeps the product in a float32 tensor.
    double& product = target.state->numbers[0];
    product = static_cast<double>(static_cast<float>(product) * static_cast<float>(mu));
    update_range(NAdamUpdate{.lr = options.lr,
                             .beta1 = beta1,
                             .beta2 = std::get<1>(options.betas),
                             .eps = options.eps,
                             .weight_decay = options.weight_decay,
                             .is_decoupled = options.decoupled_weight_decay,
                             .mu = mu,
                             .mu_next = momentum_at(step + 1),
                             .mu_product = product,
                             .step = target.state->step},
                 range_of(target));
  }

  void update_with(Target& target, const RAdamOptions& options) {
    update_range(RAdamUpdate{.lr = options.lr,
                             .beta1 = std::get<0>(options.betas),
                             .beta2 = std::get<1>(options.betas),
                             .eps = options.eps,
                             .weight_decay = options.weight_decay,
                             .is_decoupled = options.decoupled_weight_decay,
                             .step = target.state->step},
                 range_of(target));
  }

  void update_with(Target& target, const AdamaxOptions& options) {
    update_range(AdamaxUpdate{.lr = options.lr,
                              .beta1 = std::get<0>(options.betas),
                              .beta2 = std::get<1>(options.betas),
                              .eps = options.eps,
                              .weight_decay = options.weight_decay,
                              .step = target.state->step},
                 range_of(target));
  }

  void update_with(Target& target, const AdadeltaOptions& options) {
    update_range(AdadeltaUpdate{.lr = options.lr,
                                .rho = options.rho,
                                .eps = options.eps,
                                .weight_decay = options.weight_decay},
                 range_of(target));
  }

  void update_with(Target& target, const RMSpropOptions& options) {
    update_range(RmspropUpdate{.lr = options.lr,
                               .alpha = options.alpha,
                               .eps = options.eps,
                               .weight_decay = options.weight_decay,
                               .momentum = options.momentum},
                 range_of(target));
  }

  void update_with(Target& target, const LionOptions& options) {
    update_range(LionUpdate{.lr = options.lr,
                            .beta1 = std::get<0>(options.betas),
                            .beta2 = std::get<1>(options.betas),
                            .weight_decay = options.weight_decay},
                 range_of(target));
  }

  void update_with(Target& target, const LAMBOptions& options) {
    const LambUpdate update{.beta1 = std::get<0>(options.betas),
                            .beta2 = std::get<1>(options.betas),
                            .eps = options.eps,
                            .weight_decay = options.weight_decay,
                            .step = target.state->step};
    const UpdateRange range = range_of(target);
    const double ratio = lamb_trust_ratio(update_lamb_states(update, range));
    update_range(LambScaledUpdate{.update = update, .scale = options.lr * ratio}, range);
  }

  void update_sparse(const Target& target) {
    if constexpr (std::is_same_v<Options, SGDOptions>) {
      target.parameter.add_(target.gradient, options_.maximize ? options_.lr : -options_.lr);
    } else if constexpr (std::is_same_v<Options, AdagradOptions>) {
      const at::Tensor gradient = target.gradient.coalesce();
      const at::Tensor values =
          options_.maximize ? gradient._values().neg() : gradient._values().detach();
      const auto sparse = [&](const at::Tensor& of) {
        return at::_sparse_coo_tensor_unsafe(gradient._indices(), of, gradient.sizes());
      };
      const at::Tensor& sum = target.states[0];
      // Squares of what float16 still holds may be out of its range.
      sum.add_(sparse(values.to(sum.scalar_type()).square()));
      const at::Tensor deviation = sum.sparse_mask(gradient)._values().sqrt().add_(options_.eps);
      const double decayed =
          options_.lr / (1 + static_cast<double>(target.state->step - 1) * options_.lr_decay);
      target.parameter.add_(sparse((values / deviation).to(values.scalar_type())), -decayed);
    }
  }

  torch::optim::Optimizer& optimizer_;
  const std::size_t group_;
  const Options options_;
  std::vector<Target> targets_;
  std::vector<Batch> batches_;
};

}  // namespace

template <class Options>
std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer& optimizer, std::size_t group,
                                              const Options& options) {
  return std::make_unique<GroupUpdate<Options>>(optimizer, group, options);
}

template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const SGDOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const AdamOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const AdamWOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const AdagradOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const NAdamOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const RAdamOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const AdamaxOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const AdadeltaOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const RMSpropOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const LionOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const LAMBOptions&);

}  // namespace lockstep::inline internal
