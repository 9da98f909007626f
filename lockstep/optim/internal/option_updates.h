#pragma once

#include <cstdint>

#include "lockstep/optim/internal/optimizer_fields.h"
#include "lockstep/optim/internal/update_range.h"

/// The update of a range of elements that the options of an optimizer ask for. Pure.
namespace lockstep::inline internal {

/// Of a parameter's state, in the step to be made.
struct StepCounts {
  std::int64_t step = 0;        ///< from 1
  bool makes_momentum = false;  ///< SGD: there is none yet
  double mu_product = 1;        ///< NAdam
};

SgdUpdate update_of(const SGDOptions& options, const StepCounts& counts);
AdamUpdate update_of(const AdamOptions& options, const StepCounts& counts);
AdamUpdate update_of(const AdamWOptions& options, const StepCounts& counts);
AdagradUpdate update_of(const AdagradOptions& options, const StepCounts& counts);
NAdamUpdate update_of(const NAdamOptions& options, const StepCounts& counts);
RAdamUpdate update_of(const RAdamOptions& options, const StepCounts& counts);
AdamaxUpdate update_of(const AdamaxOptions& options, const StepCounts& counts);
AdadeltaUpdate update_of(const AdadeltaOptions& options, const StepCounts& counts);
RmspropUpdate update_of(const RMSpropOptions& options, const StepCounts& counts);
LionUpdate update_of(const LionOptions& options, const StepCounts& counts);
LambUpdate update_of(const LAMBOptions& options, const StepCounts& counts);

/// NAdam's product of momenta with that of `step`.
double next_mu_product(const NAdamOptions& options, std::int64_t step, double product);

}  // namespace lockstep::inline internal
