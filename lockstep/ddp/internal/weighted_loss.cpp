#include "lockstep/ddp/internal/weighted_loss.h"

#include <cmath>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

void check_weighted_loss(const char* operation, const ProcessGroup& group, const at::Tensor& loss,
                         double weight) {
  const auto refuse = [&](const std::string& what) {
    throw UsageError(concat(operation, " on rank ", group.rank(), ": ", what));
  };
  if (!(weight >= 0 && std::isfinite(weight))) {
    refuse(
        concat("weight=", weight, " is not a number of samples; it must be 0 or more, and finite"));
  }
  if (!loss.defined() || loss.numel() != 1) {
    refuse(
        concat("the loss has ", loss.defined() ? loss.numel() : 0,
               " elements; it must be one number, the mean over the samples that are its weight"));
  }
  if (!loss.requires_grad()) {
    refuse("the loss depends on nothing that requires a gradient; compute it from the outputs");
  }
}

}  // namespace lockstep::inline internal
