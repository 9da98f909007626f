#include "launcher/supervise/failure_report.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "diagnose/verdict/error_file.h"
#include "diagnose/verdict/worker_text.h"
#include "launcher/logs/worker_logs.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/process/signals.h"

namespace lockstep::inline internal {
namespace {

// The others by how they ended, in the order of the first of each kind.
std::string others(const GenerationOutcome& outcome, const WorkerExit& cause) {
  std::vector<std::pair<std::string, std::vector<int>>> kinds;
  for (const WorkerExit& exit : outcome.exits) {
    if (exit.rank == cause.rank) continue;
    std::string end = describe_end(exit);
    if (exit.told_to_stop) {
      end = exit.signal != 0 ? concat("stopped by ", signal_name(exit.signal))
                             : concat("stopped, ", end);
    }
    const auto known = std::find_if(kinds.begin(), kinds.end(),
                                    [&](const auto& kind) { return kind.first == end; });
    if (known == kinds.end()) {
      kinds.push_back({end, {exit.rank}});
    } else {
      known->second.push_back(exit.rank);
    }
  }
  std::string text;
  for (const auto& [end, ranks] : kinds) {
    text += concat(text.empty() ? "" : "; ", rank_list(ranks), ": ", end);
  }
  return text;
}

std::string where_to_look(const LaunchOptions& options, const WorkerExit& cause) {
  const WorkerLogPlan plan = plan_worker_logs(options, cause.local_rank);
  if (plan.err.target == StreamPlan::Target::kFile)
    return (cause.directory / "stderr.log").string();
  if (plan.out.target == StreamPlan::Target::kFile)
    return (cause.directory / "stdout.log").string();
  return options.worker_count > 1
             ? "above; with --tee=3 --log-dir=logs, lines carry their rank and are kept in files"
             : "above; with --tee=3 --log-dir=logs, it is kept in files";
}

// LibTorch's symbols take 0.3 s.
constexpr std::chrono::milliseconds kLongestNaming{10'000};

std::vector<StackFrame*> crash_frames(GenerationOutcome& outcome) {
  std::vector<StackFrame*> frames;
  for (WorkerExit& exit : outcome.exits) {
    if (!exit.crash) continue;
    for (StackFrame& frame : exit.crash->frames) frames.push_back(&frame);
  }
  return frames;
}

}  // namespace

std::string describe_stuck(const WorkerExit& worker) {
  return concat(describe_worker(worker), " still runs after SIGKILL: it hangs in the kernel; see ",
                "/proc/", worker.pid, "/stack");
}

std::string failure_report(const GenerationOutcome& outcome, const LaunchOptions& options) {
  const WorkerExit* const cause = first_cause(outcome);
  LOCKSTEP_ASSERT(cause != nullptr);
  const std::string where = options.rendezvous.max_nodes > 1 ? concat(" on ", host_name()) : "";
  std::string text = concat("lockstep: job failed: ", describe_fault(*cause, where), "\n");
  const auto line = [&](const char* name, const std::string& value) {
    if (!value.empty()) text += concat("lockstep:   ", name, value, "\n");
  };
  if (cause->crash) {
    text += describe_crash(*cause);
  } else {
    line("calls:  ", last_collectives(cause->collectives));
  }
  line("others: ", others(outcome, *cause));
  line("hint:   ", describe_remedy(*cause));
  line("output: ", where_to_look(options, *cause));
  for (const WorkerExit& stuck : outcome.stuck) {
    text += concat("lockstep: ", describe_stuck(stuck), "\n");
  }
  return text;
}

std::string reason_after(const std::string& fault, const std::string& cause) {
  constexpr std::string_view kSeparator = "; ";
  const std::string reason = cause.substr(fault.size());
  return reason.size() > kSeparator.size() ? reason.substr(kSeparator.size()) : "";
}

CrashNaming::CrashNaming(GenerationOutcome outcome)
    : outcome_(std::move(outcome)),
      naming_(crash_frames(outcome_), Deadline::after(kLongestNaming)) {}

bool CrashNaming::proceed() noexcept {
  if (!naming_.proceed()) return false;
  note_names();
  return true;
}

void CrashNaming::finish() noexcept {
  naming_.finish();
  note_names();
}

std::string CrashNaming::text() const {
  const WorkerExit* const cause = first_cause(outcome_);
  if (cause == nullptr || !cause->crash) return "";
  return concat("lockstep: ", describe_worker(*cause), " crashed: ", cause->error_message, "\n",
                describe_crash(*cause));
}

GenerationOutcome name_crashes(GenerationOutcome outcome) {
  CrashNaming naming(std::move(outcome));
  naming.finish();
  return naming.outcome();
}

void CrashNaming::note_names() noexcept try {
  for (WorkerExit& exit : outcome_.exits) {
    if (!exit.crash) continue;
    exit.error_message = crash_message(*exit.crash);
    exit.error_kind = error_kind_of(exit.error_message);
    if (!exit.directory.empty()) add_names(error_file_of(exit), *exit.crash);
  }
} catch (const std::exception&) {
  // Out of memory: the report has addresses in place of names, and error files stay as they are.
}

}  // namespace lockstep::inline internal
