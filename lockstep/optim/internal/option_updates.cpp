#include "lockstep/optim/internal/option_updates.h"

#include <cmath>

namespace lockstep::inline internal {
namespace {

template <class Options>
AdamUpdate adam_update(const Options& options, const StepCounts& counts) {
  return {.lr = options.lr,
          .beta1 = std::get<0>(options.betas),
          .beta2 = std::get<1>(options.betas),
          .eps = options.eps,
          .weight_decay = options.weight_decay,
          .is_decoupled = Described<Options>::kIsDecoupled,
          .step = counts.step};
}

double nadam_momentum(const NAdamOptions& options, double step) {
  return std::get<0>(options.betas) * (1.0 - 0.5 * std::pow(0.96, step * options.momentum_decay));
}

}  // namespace

SgdUpdate update_of(const SGDOptions& options, const StepCounts& counts) {
  return {.lr = options.lr,
          .momentum = options.momentum,
          .dampening = options.dampening,
          .weight_decay = options.weight_decay,
          .nesterov = options.nesterov,
          .is_first_step = counts.makes_momentum};
}

AdamUpdate update_of(const AdamOptions& options, const StepCounts& counts) {
  return adam_update(options, counts);
}

AdamUpdate update_of(const AdamWOptions& options, const StepCounts& counts) {
  return adam_update(options, counts);
}

AdagradUpdate update_of(const AdagradOptions& options, const StepCounts& counts) {
  return {.lr = options.lr,
          .lr_decay = options.lr_decay,
          .weight_decay = options.weight_decay,
          .eps = options.eps,
          .step = counts.step};
}

NAdamUpdate update_of(const NAdamOptions& options, const StepCounts& counts) {
  const auto step = static_cast<double>(counts.step);
  return {.lr = options.lr,
          .beta1 = std::get<0>(options.betas),
          .beta2 = std::get<1>(options.betas),
          .eps = options.eps,
          .weight_decay = options.weight_decay,
          .is_decoupled = options.decoupled_weight_decay,
          .mu = nadam_momentum(options, step),
          .mu_next = nadam_momentum(options, step + 1),
          .mu_product = counts.mu_product,
          .step = counts.step};
}

RAdamUpdate update_of(const RAdamOptions& options, const StepCounts& counts) {
  return {.lr = options.lr,
          .beta1 = std::get<0>(options.betas),
          .beta2 = std::get<1>(options.betas),
          .eps = options.eps,
          .weight_decay = options.weight_decay,
          .is_decoupled = options.decoupled_weight_decay,
          .step = counts.step};
}

AdamaxUpdate update_of(const AdamaxOptions& options, const StepCounts& counts) {
  return {.lr = options.lr,
          .beta1 = std::get<0>(options.betas),
          .beta2 = std::get<1>(options.betas),
          .eps = options.eps,
          .weight_decay = options.weight_decay,
          .step = counts.step};
}

AdadeltaUpdate update_of(const AdadeltaOptions& options, const StepCounts&) {
  return {.lr = options.lr,
          .rho = options.rho,
          .eps = options.eps,
          .weight_decay = options.weight_decay};
}

RmspropUpdate update_of(const RMSpropOptions& options, const StepCounts&) {
  return {.lr = options.lr,
          .alpha = options.alpha,
          .eps = options.eps,
          .weight_decay = options.weight_decay,
          .momentum = options.momentum};
}

LionUpdate update_of(const LionOptions& options, const StepCounts&) {
  return {.lr = options.lr,
          .beta1 = std::get<0>(options.betas),
          .beta2 = std::get<1>(options.betas),
          .weight_decay = options.weight_decay};
}

LambUpdate update_of(const LAMBOptions& options, const StepCounts& counts) {
  return {.beta1 = std::get<0>(options.betas),
          .beta2 = std::get<1>(options.betas),
          .eps = options.eps,
          .weight_decay = options.weight_decay,
          .step = counts.step};
}

double next_mu_product(const NAdamOptions& options, std::int64_t step, double product) {
  // Python keeps the product in a float32 tensor.
  const double mu = nadam_momentum(options, static_cast<double>(step));
  return static_cast<double>(static_cast<float>(product) * static_cast<float>(mu));
}

}  // namespace lockstep::inline internal
