#pragma once

#include <string>

#include <ATen/core/ivalue.h>

#include "lockstep/snapshot/snapshot.h"

namespace lockstep::inline internal {

/// In the dict "lockstep" of a file that is one rank's share of a snapshot: the save's number.
inline constexpr const char* kShareMark = "share_of";

/// The snapshot of a dict that snapshot_value() made. `source`: for errors. Errors: UsageError when
/// it is another dict, or of a newer format.
Snapshot snapshot_from(const c10::IValue& dict, const std::string& source);

}  // namespace lockstep::inline internal
