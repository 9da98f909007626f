#pragma once

#include <chrono>
#include <string>

#include "diagnose/verdict/generation_outcome.h"
#include "launcher/rendezvous/rendezvous_state.h"

namespace lockstep::inline internal {

/// Describes a worker's failure to the rendezvous. `where`: " on" its machine in a job of several,
/// else empty. `after`: time since the workers were started.
/// The fault's place identifies crash loops: it is the same text for the same failure on any rank.
/// It consists of the step and the error message without numbers of ranks and processes, the place
/// of a crash, whose memory was short, or the exit code or signal of a worker that ended soon. It
/// is empty for a failure that follows another's, for a program that had run for long, and for a
/// process that somebody killed.
WorkerFault fault_of(const WorkerExit& exit, const std::string& where, std::chrono::seconds after);

}  // namespace lockstep::inline internal
