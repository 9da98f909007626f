#pragma once

#include <chrono>
#include <string>

#include "diagnose/verdict/generation_outcome.h"
#include "launcher/rendezvous/rendezvous_state.h"

namespace lockstep::inline internal {

/// What a worker's failure is to the job. `where`: " on" its machine, for a job of several, or
/// empty. `after`: since the start of the workers.
/// Its place, by which crash loops are found, is the same text for the same failure, whichever rank
/// has it: the step, and the error that it reported without the numbers of ranks and processes,
/// where it crashed, whose memory was short, or else the exit code or signal of one that ended
/// soon. It is empty for what follows another's failure, for a program that had run for long, and
/// for one that somebody killed.
WorkerFault fault_of(const WorkerExit& exit, const std::string& where, std::chrono::seconds after);

}  // namespace lockstep::inline internal
