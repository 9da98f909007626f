#include "diagnose/verdict/worker_text.h"

#include <algorithm>
#include <csignal>
#include <cstddef>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/process/signals.h"

namespace lockstep::inline internal {
namespace {

bool is_out_of_memory(const WorkerExit& exit) {
  return exit.signal == SIGKILL && !exit.told_to_stop && !exit.memory_shortage.empty();
}

}  // namespace

std::string describe_end(const WorkerExit& exit) {
  if (exit.signal != 0) return concat("killed by ", signal_name(exit.signal));
  return concat("exit code ", exit.exit_code, exit.left_early ? " before training ended" : "");
}

std::string describe_failure(const WorkerExit& exit) {
  const std::string& error = exit.error_message;
  const std::string step = exit.step.empty() ? "" : concat(" at step ", exit.step);
  if (!exit.late_for.empty()) {
    return concat("killed after a hang", step, exit.hangs_in.empty() ? "" : " in ", exit.hangs_in,
                  ": ", exit.late_for);
  }
  if (exit.failed_before_stop()) {
    return concat("failed", step, ": ", error, ", then stopped by ", signal_name(exit.signal));
  }
  // "SIGSEGV at address 0x0 in step() a.cpp:4" names the signal itself.
  if (exit.crash && exit.signal != 0 && error.starts_with(signal_name(exit.signal))) {
    return concat("killed by ", error, step);
  }
  const std::string end = exit.signal != 0 ? concat("killed by ", signal_name(exit.signal))
                                           : concat("exited with code ", exit.exit_code);
  return concat(end, exit.left_early ? " before training ended" : "", step,
                is_out_of_memory(exit) ? concat(": out of memory: ", exit.memory_shortage) : "",
                error.empty() ? "" : concat(": ", error));
}

std::string describe_fault(const WorkerExit& exit, const std::string& where) {
  return concat(exit.late_rank, exit.late_rank.empty() ? "" : "; ", describe_worker(exit), where,
                " ", describe_failure(exit));
}

std::string describe_remedy(const WorkerExit& exit) {
  if (exit.told_to_stop || !exit.late_for.empty()) return "";
  if (is_out_of_memory(exit)) {
    return "use less memory, for example smaller batches, or raise the limit";
  }
  switch (exit.signal) {
    case SIGKILL:
      return "lockstep did not send SIGKILL; the kernel often does when memory is short: see dmesg";
    case SIGBUS:
      return "SIGBUS is often caused by a full /dev/shm, or by a mapped file that was truncated";
    case SIGSEGV:
    case SIGABRT:
    case SIGFPE:
    case SIGILL:
      return exit.crash ? ""
                        : "to see where: ulimit -c unlimited, run again, gdb <program> <core file>";
    default:
      return "";
  }
}

std::string describe_crash(const WorkerExit& exit) {
  constexpr std::size_t kMostLines = 8;
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    if (!value.empty()) text += concat("lockstep:   ", name, value, "\n");
  };
  const std::string& thread = exit.crash->thread;
  if (!thread.empty()) line("thread: ", concat("'", thread, "' (not the main thread)"));
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
    text += concat(i == 0 ? "" : ", ", ranks[i]);
    if (last > i) text += concat(last == i + 1 ? ", " : "-", ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string describe_worker(const WorkerExit& exit) {
  const bool is_first_machine = exit.rank == exit.local_rank;
  return concat("rank ", exit.rank, " (",
                is_first_machine ? "" : concat("local rank ", exit.local_rank, ", "), "pid ",
                exit.pid, ")");
}

}  // namespace lockstep::inline internal
