#pragma once

#include <string>

#include "lockstep/train/duration.h"
#include "lockstep/train/metrics.h"

namespace lockstep {

/// How a fit ended.
enum class FitEnd {
  kDone,       ///< as long as it was to be
  kStopped,    ///< a callback has ended it
  kPreempted,  ///< told to make room, all have saved: end with kExitPreempted
};

struct FitResult {
  FitEnd end = FitEnd::kDone;
  std::string reason{};  ///< of a stop, for people
  TrainingTime time{};
  Metrics metrics{};  ///< the newest of each
};

}  // namespace lockstep
