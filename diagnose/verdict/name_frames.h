#pragma once

#include <vector>

#include "diagnose/verdict/crash_report.h"
#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// Finds functions, files and lines of frames of processes that have ended, in the symbols and
/// debug information of their modules. What is not known by the deadline stays without. In a
/// process of its own: what is wrong in such a file harms no more than that. Never throws.
void name_frames(const std::vector<StackFrame*>& frames, Deadline deadline) noexcept;

}  // namespace lockstep::inline internal
