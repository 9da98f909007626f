#include "diagnose/verdict/generation_outcome.h"

#include <algorithm>
#include <csignal>

#include "lockstep/base/error.h"

namespace lockstep::inline internal {
namespace {

// Failed, and not because the launcher told it to end.
bool failed_by_itself(const WorkerExit& exit) {
  return exit.failed() && !exit.told_to_stop;
}

// Ended with an error of its own, even if only after it had been told to stop.
bool has_error_of_its_own(const WorkerExit& exit) {
  if (!exit.failed() || exit.follows_another()) return false;
  return !exit.told_to_stop || !exit.error_message.empty();
}

}  // namespace

bool is_preempted(const GenerationOutcome& outcome) {
  const auto has_saved = [](const WorkerExit& exit) { return exit.exit_code == kExitPreempted; };
  const auto ended_well = [](const WorkerExit& exit) { return !exit.failed(); };
  // Those that had yet to begin have nothing to save.
  const auto was_stopped = [](const WorkerExit& exit) {
    return exit.told_to_stop && exit.signal == SIGTERM;
  };
  return outcome.stuck.empty() && std::ranges::any_of(outcome.exits, has_saved) &&
         std::ranges::all_of(outcome.exits, [&](const auto& exit) {
           return has_saved(exit) || ended_well(exit) || was_stopped(exit);
         });
}

int WorkerExit::status() const {
  if (failed_before_stop()) return error_code != 0 ? error_code : 1;
  if (left_early) return kExitFailure;
  return signal != 0 ? 128 + signal : exit_code;
}

const WorkerExit* first_cause(const GenerationOutcome& outcome) {
  const auto& exits = outcome.exits;
  const auto first = std::find_if(exits.begin(), exits.end(), failed_by_itself);
  if (first == exits.end()) return nullptr;
  if (!first->follows_another()) return &*first;
  const auto origin = std::find_if(exits.begin(), exits.end(), has_error_of_its_own);
  return origin == exits.end() ? &*first : &*origin;
}

}  // namespace lockstep::inline internal
