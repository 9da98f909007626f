#include "launcher/rendezvous/fault_of.h"

#include <algorithm>
#include <csignal>
#include <string_view>

#include "diagnose/verdict/worker_text.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

// The same error of a program that ran for long each time is no loop of crashes.
constexpr minutes kLongRun{10};
// An exit code says little, so that only those that come with the start count.
constexpr seconds kStart{30};

// What a program does to itself; others come from outside.
bool is_crash(int signal) {
  return signal == SIGABRT || signal == SIGBUS || signal == SIGFPE || signal == SIGILL ||
         signal == SIGSEGV || signal == SIGSYS || signal == SIGTRAP;
}

// In its files, as addresses differ from start to start.
std::string place_of_crash(const WorkerExit& exit) {
  std::string place = concat("signal ", exit.signal);
  for (const StackFrame& frame : exit.crash->frames) {
    place += concat(" ", frame.module, "+", frame.offset);
  }
  return place;
}

// Errors name their rank and process, which are others where another rank has the same one.
std::string without_processes(std::string text) {
  constexpr std::string_view kDigits = "0123456789";
  for (const std::string_view name : {"rank ", "pid "}) {
    for (auto at = text.find(name); at != std::string::npos; at = text.find(name, at)) {
      at += name.size();
      const auto end = std::min(text.find_first_not_of(kDigits, at), text.size());
      text.erase(at, end - at);
    }
  }
  return text;
}

std::string place_of(const WorkerExit& exit, seconds after) {
  if (exit.crash) return place_of_crash(exit);
  if (!exit.late_for.empty()) return exit.hangs_in;
  if (!exit.error_message.empty()) return without_processes(exit.error_message);
  if (!exit.memory_shortage.empty()) return exit.memory_shortage;
  if (after > kStart || (exit.signal != 0 && !is_crash(exit.signal))) return "";
  return describe_end(exit);
}

}  // namespace

WorkerFault fault_of(const WorkerExit& exit, const std::string& where, seconds after) {
  if (exit.exit_code == kExitPreempted) {
    return {.text = concat("preempted: ", describe_worker(exit), where,
                           " saved its state; start the job again to resume"),
            .status = kExitPreempted};
  }
  const bool has_place = after < kLongRun && !exit.follows_another();
  const std::string place = has_place ? place_of(exit, after) : "";
  return {.text = describe_fault(exit, where),
          .place = place.empty() ? "" : concat(exit.step, ": ", place),
          .status = exit.status(),
          .is_hang = !exit.late_for.empty() || exit.deadline_expired,
          .silent_since = exit.silent_since,
          .is_final = exit.cannot_recover};
}

}  // namespace lockstep::inline internal
