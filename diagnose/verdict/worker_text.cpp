#include "diagnose/verdict/worker_text.h"

#include <algorithm>
#include <csignal>
#include <cstddef>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/process/signals.h"

namespace lockstep::inline internal {
namespace {

// What usually is behind a signal that the launcher did not send.
std::string signal_hint(const WorkerExit& exit) {
  switch (exit.signal) {
    case SIGKILL:
      if (!exit.memory_shortage.empty()) {
        return concat(" by the kernel, out of memory: ", exit.memory_shortage,
                      "; use less, as by smaller batches, or give the job more");
      }
      return "; not sent by lockstep: often the kernel, out of memory (see dmesg)";
    case SIGBUS:
      return "; often a full /dev/shm or a file that became shorter";
    case SIGSEGV:
    case SIGABRT:
    case SIGFPE:
    case SIGILL:
      if (exit.crash) return "";
      return "; a debugger shows where: gdb --args <program>";
    default:
      return "";
  }
}

}  // namespace

std::string describe_end(const WorkerExit& exit) {
  if (exit.signal != 0) return concat("killed by ", signal_name(exit.signal));
  return concat("exit code ", exit.exit_code, exit.left_early ? " in the middle of training" : "");
}

std::string describe_failure(const WorkerExit& exit) {
  const std::string& error = exit.error_message;
  if (!exit.late_for.empty()) {
    return concat(": killed, as it hung", exit.hangs_in.empty() ? "" : " in ", exit.hangs_in, ": ",
                  exit.late_for);
  }
  if (exit.failed_before_stop()) {
    return concat(": ", error, ", then stopped with ", signal_name(exit.signal));
  }
  const std::string hint = exit.told_to_stop ? "" : signal_hint(exit);
  if (error.empty()) return concat(": ", describe_end(exit), hint);
  // "killed by SIGSEGV at address 0x0", which begins with the signal's name itself.
  if (exit.crash && exit.signal != 0 && error.starts_with(signal_name(exit.signal))) {
    return concat(": killed by ", error, hint);
  }
  return concat(": ", describe_end(exit), ": ", error, hint);
}

std::string describe_crash(const WorkerExit& exit) {
  constexpr std::size_t kMostLines = 8;
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    if (!value.empty()) text += concat("lockstep:   ", name, value, "\n");
  };
  const std::string& thread = exit.crash->thread;
  if (!thread.empty()) line("thread: ", concat("'", thread, "', not the main one"));
  const char* name = "stack:  ";
  for (const std::string& call : shortened(stack_lines(exit.crash->frames), kMostLines)) {
    line(name, call);
    name = "        ";
  }
  line("calls:  ", last_collectives(exit.crash->collectives));
  return text;
}

std::string rank_list(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += concat(i == 0 ? "" : ",", ranks[i]);
    if (last > i) text += concat(last == i + 1 ? "," : "-", ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string describe_worker(const WorkerExit& exit) {
  return concat("rank ", exit.rank, " (local rank ", exit.local_rank, ", pid ", exit.pid, ")");
}

std::string describe_step(const WorkerExit& exit) {
  return exit.step.empty() ? "" : concat(" in step ", exit.step);
}

}  // namespace lockstep::inline internal
