// Reads the stacks of workers that hang, and reports them.
#include <algorithm>
#include <fstream>

#include "diagnose/verdict/hang_verdict.h"
#include "launcher/job/console.h"
#include "launcher/logs/worker_logs.h"
#include "launcher/supervise/supervisor.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/memory/futex.h"

namespace lockstep::inline internal {
namespace {

// For reading the stacks of all workers: ten times what it takes.
constexpr std::chrono::milliseconds kLooks{1'500};

}  // namespace

void Supervisor::carry_out(const action::ExplainHang& explain) {
  std::vector<RankPlace> ranks;
  std::vector<pid_t> processes;
  for (const WorkerId id : explain.workers) {
    const Process& process = processes_.at(id);
    ranks.push_back({.worker = exit_of(id), .calls = process.calls.read()});
    processes.push_back(process.pid);
  }
  std::vector<ProcessStacks> stacks = read_stacks(processes, Deadline::after(kLooks));
  happened::HangExplained explained;
  for (std::size_t i = 0; i < stacks.size(); ++i) {
    ranks[i].stacks = std::move(stacks[i]);
    ranks[i].worker.hangs_in = main_place(ranks[i]);
    explained.places[explain.workers[i]] = {.hangs_in = ranks[i].worker.hangs_in,
                                            .is_in_collective = waits(ranks[i])};
  }
  std::ranges::sort(ranks, {}, [](const RankPlace& rank) { return rank.worker.rank; });
  std::string text = hang_verdict(ranks, explain.awaited, parts_.rendezvous.view().cause);
  for (const RankPlace& rank : ranks) {
    const auto file = rank.worker.directory / "stacks.txt";
    std::ofstream(file, std::ios::app) << all_stacks(rank);
    if (writes_logs(job_.options)) text += concat("lockstep:   all stacks: ", file.string(), "\n");
  }
  say_text(text);
  notify(explained);
}

void Supervisor::carry_out(const action::ReadHangingPlace& read) {
  const Process& process = processes_.at(read.worker);
  RankPlace rank{.worker = exit_of(read.worker), .calls = process.calls.read()};
  for (ProcessStacks& stacks : read_stacks({process.pid}, Deadline::after(kLooks))) {
    rank.stacks = std::move(stacks);
  }
  // Also where they cannot be read: it is waited for.
  notify(happened::HangingPlaceRead{read.worker, main_place(rank), waits(rank)});
}

void Supervisor::carry_out(const action::ReleaseWaitingWorker& release) {
  if (RecentCalls* const calls = processes_.at(release.worker).calls.get()) {
    ++calls->looks();
    futex_wake_all(calls->looks());
  }
}

}  // namespace lockstep::inline internal
