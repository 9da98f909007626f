#pragma once

#include "lockstep/base/error.h"

namespace lockstep::inline internal {

/// An archive of PyTorch that is not damaged, as far as one can tell, but holds something else than
/// tensors and plain values.
class NotACheckpoint : public UsageError {
 public:
  using UsageError::UsageError;
};

}  // namespace lockstep::inline internal
