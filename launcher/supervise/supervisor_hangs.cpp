// What becomes of workers that hang: they are looked at, named, and those that could go on
// replaced.
#include <algorithm>
#include <csignal>
#include <fstream>

#include "diagnose/verdict/hang_verdict.h"
#include "launcher/job/console.h"
#include "launcher/logs/worker_logs.h"
#include "launcher/supervise/supervisor.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

using std::chrono::milliseconds;

// For looking at all workers: ten times what it takes.
constexpr milliseconds kLooks{1'500};
// Between the deadlines of ranks that wait for the same one.
constexpr milliseconds kSameHang{2'000};
// From SIGKILL to the end of the worker.
constexpr milliseconds kEnds{1'000};

}  // namespace

// At once, as those that wait leave their group soon.
void Supervisor::explain_hang(const std::optional<AwaitedCall>& awaited) {
  if (hang_explained_ && !hang_explained_->passed()) return;
  std::vector<RankPlace> ranks;
  std::vector<pid_t> processes;
  for (const auto& [id, group] : groups_) {
    if (!group.running || group.is_standby || group.is_dismissed) continue;
    ranks.push_back({.worker = group.worker, .calls = group.calls.read()});
    processes.push_back(id);
  }
  std::vector<ProcessStacks> stacks = read_stacks(processes, Deadline::after(kLooks));
  for (std::size_t i = 0; i < stacks.size(); ++i) {
    ranks[i].stacks = std::move(stacks[i]);
    Group& group = groups_.at(processes[i]);
    group.worker.hangs_in = main_place(ranks[i]);
    group.waits = waits(ranks[i]);
  }
  std::ranges::sort(ranks, {}, [](const RankPlace& rank) { return rank.worker.rank; });
  std::string text = hang_verdict(ranks, awaited, rendezvous_.view().cause);
  for (const RankPlace& rank : ranks) {
    const auto file = rank.worker.directory / "stacks.txt";
    std::ofstream(file, std::ios::app) << all_stacks(rank);
    if (writes_logs(options_)) text += concat("lockstep:   all stacks: ", file.string(), "\n");
  }
  say_text(text);
  hang_explained_ = Deadline::after(kSameHang);
}

// Those that have heard it wait for their place; the others compute, or hang.
void Supervisor::look_for_those_that_hang() {
  if (std::exchange(has_looked_, true)) return;
  explain_hang(std::nullopt);
  awaits_leaving_ = true;
  for (auto& [id, group] : groups_) {
    group.leaves_by = Deadline::after(group.waits ? kTimeToLeaveCollective : kTimeToLeave);
    // Others were late to meet, which says nothing of one that still has the time to take its
    // place.
    if (group.answers_by && group.answers_by->instant() > group.leaves_by->instant()) {
      group.leaves_by = group.answers_by;
    }
  }
  tell_to_leave();
}

// Their peers may be gone without that they notice, and nobody else ends their wait.
void Supervisor::tell_to_leave() {
  for (const auto& [id, group] : groups_) {
    if (!group.is_kept() || group.has_left_group) continue;
    send_message(group.link.get(), LeaveGroup{.generation = generation_});
  }
}

void Supervisor::end_those_that_hang() {
  if (stop_.started()) return;
  for (auto& [id, group] : groups_) {
    if (!group.is_kept() || !group.answers_by || !group.answers_by->passed()) continue;
    end_as_hanging(id, group,
                   concat("it did not join generation ", generation_, " within ",
                          group.reads_within.count(), " ms"));
  }
  if (!awaits_leaving_) return;
  awaits_leaving_ = false;
  const std::string why = outcome_.lost.empty() ? rendezvous_.view().cause : outcome_.lost;
  for (auto& [id, group] : groups_) {
    if (!group.is_kept() || group.has_left_group || !group.leaves_by) continue;
    if (group.leaves_by->passed()) {
      end_as_hanging(id, group, why);
    } else {
      awaits_leaving_ = true;
    }
  }
  if (!awaits_leaving_) cause_by_ = Deadline::after(milliseconds(0));
}

// It is replaced as others that end.
void Supervisor::end_as_hanging(pid_t id, Group& group, const std::string& why) {
  group.worker.late_for = why;
  if (group.worker.hangs_in.empty()) {
    for (ProcessStacks& stacks : read_stacks({id}, Deadline::after(kLooks))) {
      group.worker.hangs_in = main_place({.stacks = std::move(stacks)});
    }
  }
  signal_group(id, SIGKILL);
  looks_until_ = Deadline::after(kEnds);
}

bool Supervisor::is_looking() const {
  const auto is_awaited = [](const auto& entry) {
    return entry.second.running && !entry.second.worker.late_for.empty();
  };
  return awaits_leaving_ ||
         (looks_until_ && !looks_until_->passed() && std::ranges::any_of(groups_, is_awaited));
}

}  // namespace lockstep::inline internal
