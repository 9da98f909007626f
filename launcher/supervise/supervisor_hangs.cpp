// Reads the stacks of workers that hang, and reports them.
#include <algorithm>
#include <fstream>

#include "launcher/job/console.h"
#include "launcher/logs/worker_logs.h"
#include "launcher/supervise/supervisor.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/memory/futex.h"

namespace lockstep::inline internal {
namespace {

// For reading the stacks of all workers: ten times what it takes.
constexpr std::chrono::milliseconds kLooks{1'500};

// For writing the stacks of Python: a hundred times what it takes.
constexpr std::chrono::milliseconds kPythonLooks{200};

std::map<WorkerId, StackPlace> places_of(const std::vector<WorkerId>& workers,
                                         const std::vector<RankPlace>& ranks) {
  std::map<WorkerId, StackPlace> places;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    places[workers[i]] = {.hangs_in = ranks[i].worker.hangs_in,
                          .is_in_collective = waits(ranks[i])};
  }
  return places;
}

}  // namespace

// Before the others: while these are read, the process is stopped.
void Supervisor::read_python_stacks(const std::vector<WorkerId>& workers,
                                    std::vector<RankPlace>& ranks) const {
  std::vector<bool> is_asked;
  for (const WorkerId id : workers) {
    const Process& process = processes_.at(id);
    is_asked.push_back(process.python.ask(process.pid));
  }
  const Deadline deadline = Deadline::after(kPythonLooks);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (is_asked[i]) ranks[i].python = processes_.at(workers[i]).python.read(deadline);
  }
}

std::vector<RankPlace> Supervisor::read_places(const std::vector<WorkerId>& workers) const {
  std::vector<RankPlace> ranks;
  std::vector<pid_t> processes;
  for (const WorkerId id : workers) {
    const Process& process = processes_.at(id);
    ranks.push_back({.worker = exit_of(id), .calls = process.calls.read()});
    processes.push_back(process.pid);
  }
  read_python_stacks(workers, ranks);
  std::vector<ProcessStacks> stacks = read_stacks(processes, Deadline::after(kLooks));
  stacks.resize(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].stacks = std::move(stacks[i]);
    ranks[i].worker.hangs_in = main_place(ranks[i]);
  }
  return ranks;
}

void Supervisor::carry_out(const action::ExplainHang& explain) {
  std::vector<RankPlace> ranks = read_places(explain.workers);
  happened::HangExplained explained{places_of(explain.workers, ranks)};
  const std::vector<bool> late = find_late(ranks, explain.awaited);
  for (std::size_t i = 0; i < late.size(); ++i) {
    explained.places[explain.workers[i]].is_late = late[i];
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

void Supervisor::carry_out(const action::ReadHangingPlaces& read) {
  // Also of workers whose stacks cannot be read: the supervision waits for it.
  notify(happened::HangingPlacesRead{places_of(read.workers, read_places(read.workers))});
}

void Supervisor::carry_out(const action::ReleaseWaitingWorker& release) {
  if (RecentCalls* const calls = processes_.at(release.worker).calls.get()) {
    ++calls->looks();
    futex_wake_all(calls->looks());
  }
}

}  // namespace lockstep::inline internal
