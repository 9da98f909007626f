#include "launcher/supervise/supervisor.h"

#include <algorithm>
#include <csignal>
#include <type_traits>
#include <utility>
#include <variant>

#include <poll.h>

#include "diagnose/verdict/worker_text.h"
#include "launcher/job/console.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/job/internal/worker_link.h"
#include "lockstep/os/memory/futex.h"
#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep::inline internal {
namespace {

using std::chrono::milliseconds;

// How often the next generation is asked for where nothing else happens.
constexpr milliseconds kAskAgain{1'000};
// How often for a handler of a signal that a worker is to be told.
constexpr milliseconds kLookAgain{50};
// Blocked for that long without a break, it is taken as blocked for good, as for sigwait. A program
// that starts another blocks its signals too, on a busy machine for a tenth of a second, and may
// have no handler.
constexpr milliseconds kBlockedForGood{1'000};
// A program starts within that time.
constexpr milliseconds kMostToListen{30'000};

void wait_for(int fd, const std::optional<Deadline>& deadline) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  ::poll(&entry, 1, deadline ? poll_timeout(*deadline) : -1);
}

Deadline::Clock::time_point now() {
  return Deadline::Clock::now();
}

}  // namespace

Supervisor::Supervisor(SignalFd& signals, GroupGuard& guard, JobRendezvous& rendezvous,
                       JobBoard& board, const LaunchOptions& options, Rounds& rounds)
    : signals_(signals),
      guard_(guard),
      rendezvous_(rendezvous),
      board_(board),
      options_(options),
      rounds_(rounds),
      stop_(options.shutdown_timeout) {
  news_.add(signals_.fd());
}

Supervisor::~Supervisor() {
  for (const auto& [id, group] : groups_) signal_group(id, SIGKILL);
}

AttemptOutcome Supervisor::run(const Round& first, const std::function<void()>& on_started) {
  generation_ = first.generation;
  board_.round_begins(generation_);
  for (const Worker& worker : first.workers) start(worker);
  on_started();
  for (;;) {
    handle_signals();
    send_notices();
    read_links();
    note_ended_workers();
    report_stopped_workers();
    end_those_that_hang();
    end_round_if_over();
    go_on();
    start_standbys();
    // A job that ends well may leave processes in the background; one that is stopped may not.
    if (!any_running()) dismiss_standbys();
    if (stop_.started() ? groups_.empty() || stop_.given_up() : !any_process()) break;
    if (!any_process()) terminate_stragglers();
    wait_for_news();
  }
  for (const auto& [id, group] : groups_) {
    if (stop_.given_up()) {
      outcome_.stuck.push_back(group.worker);
      board_.given_up(group.worker);
    }
    guard_.remove(id);
  }
  groups_.clear();
  if (rendezvous_is_lost_) std::rethrow_exception(rendezvous_is_lost_);
  return std::move(outcome_);
}

Supervisor::Group& Supervisor::start(const Worker& worker) {
  WorkerLink link = make_worker_link();
  SpawnOptions spawn = worker.spawn;
  spawn.inherited_fds.push_back(link.worker.get());
  spawn.environment.push_back(concat(env::kLauncherFd.name, "=", link.worker.get()));
  failpoint("launch.start");
  const pid_t pid = spawn_process(spawn);
  failpoint("launch.started");
  news_.add(link.launcher.get());
  Group& group = groups_[pid];
  group.worker = {.rank = worker.rank,
                  .local_rank = worker.local_rank,
                  .pid = pid,
                  .directory = worker.directory};
  group.link = std::move(link.launcher);
  guard_.add(pid);
  board_.started(group.worker);
  rounds_.started(group.worker);
  return group;
}

void Supervisor::handle_signals() {
  while (const auto signal = signals_.next()) {
    if (*signal == SIGCHLD) continue;
    if (options_.is_notice(*signal)) {
      notify(*signal);
      continue;
    }
    if (outcome_.stop_signal == 0) outcome_.stop_signal = *signal;
    if (!stop_.started()) {
      if (keeps_workers_) forget_round_before();
      say(concat(signal_name(*signal), ": stopping ", count_text(groups_.size(), "worker"),
                 "; a second Ctrl-C (SIGINT) kills them"));
    }
    send(stop_.on_signal(*signal, now()));
  }
}

void Supervisor::read_links() {
  for (auto& [id, group] : groups_) read_link(group);
}

void Supervisor::read_link(Group& group) {
  try {
    while (group.link.valid()) {
      auto received = receive_from_worker(group.link.get(), Deadline(now()));
      if (!received) break;
      hear(group, std::move(*received));
    }
  } catch (const PeerLost&) {
    news_.remove(group.link.get());
    group.link.reset();
  }
}

void Supervisor::hear(Group& group, Received<WorkerMessage> received) {
  std::visit(
      [&]<class Message>(const Message& message) {
        if constexpr (std::is_same_v<Message, StateFile>) {
          rounds_.keep_memory(std::move(received.file));
        } else if constexpr (std::is_same_v<Message, CallsFile>) {
          group.calls = SharedCalls(received.file);
        } else {
          hear(group, message);
        }
      },
      received.message);
}

void Supervisor::hear(Group& group, const KeepsState& message) {
  (group.is_standby ? group.is_ready : group.keeps_state) = true;
  if (group.is_standby) failed_standbys_ = 0;
  group.reads_within = message.reads_within;
}

void Supervisor::hear(Group& group, const TrainingDone&) {
  group.keeps_state = false;
  group.is_done = true;
}

void Supervisor::hear(Group& group, const TookPlace& message) {
  if (message.generation == generation_) group.answers_by.reset();
}

void Supervisor::hear(Group& group, const WaitedInVain& message) {
  if (keeps_workers_ || stop_.started()) return;
  group.worker.waited_in_vain = true;
  explain_hang(AwaitedCall{.operation = message.operation,
                           .group = message.group,
                           .sequence = message.sequence,
                           .waited = message.waited});
  if (RecentCalls* const calls = group.calls.get()) {
    ++calls->looks();
    futex_wake_all(calls->looks());
  }
}

void Supervisor::hear(Group& group, const GivesUp&) {
  group.worker.gives_up = true;
}

void Supervisor::note_ended_workers() {
  while (const auto ended = reap_any_child()) {
    const auto found = groups_.find(ended->pid);
    if (found == groups_.end()) continue;  // A helper, or an orphan of a worker.
    Group& group = found->second;
    group.running = false;
    read_link(group);  // Its last words.
    group.worker.exit_code = ended->exit_code;
    group.worker.signal = ended->signal;
    group.worker.told_to_stop = group.told_to_stop;
    group.worker.left_early =
        group.keeps_state && !group.told_to_stop && ended->signal == 0 && ended->exit_code == 0;
    if (const RecentCalls* const calls = group.calls.get(); calls && calls->step() >= 0) {
      group.worker.step = std::to_string(calls->step());
      rounds_.made_steps(calls->step());
    }
    if (ended->signal != 0 && !group.told_to_stop) {
      group.worker.collectives = group.calls.describe_all();
    }
    if (group.link.valid()) news_.remove(group.link.get());
    group.link.reset();
    if (!group.is_dismissed && !group.is_standby) {
      rounds_.ended(group.worker);
      outcome_.exits.push_back(group.worker);
      is_over_ = is_over_ || group.worker.failed();
      if (keeps_workers_) note_end_between_rounds(group.worker);
    }
    if (group.is_standby && !group.is_ready && !group.is_dismissed)
      note_failed_standby(group.worker);
    board_.ended(group.worker);
  }
  forget_empty_groups();
}

// Where no other rank waits for it, as after the last collective, nobody else would.
void Supervisor::report_stopped_workers() const {
  while (const auto stopped = next_stopped_child()) {
    const auto found = groups_.find(stopped->pid);
    if (found == groups_.end() || found->second.told_to_stop) continue;
    say(concat(describe_worker(found->second.worker), " is stopped by ",
               signal_name(stopped->signal), "; `kill -CONT ", stopped->pid, "` continues it"));
  }
}

void Supervisor::forget_empty_groups() {
  std::erase_if(groups_, [&](const auto& entry) {
    const auto& [id, group] = entry;
    if (group.running || signal_group(id, 0)) return false;
    guard_.remove(id);
    return true;
  });
}

void Supervisor::end_round_if_over() {
  const AgentView& view = rendezvous_.view();
  const bool is_told = next_action(view, generation_, 0) == AgentAction::kStopWorkers;
  const bool lost = cause_by_ && cause_by_->passed();
  if (is_told && view.is_hang && !keeps_workers_) look_for_those_that_hang();
  if (keeps_workers_ ? !view.ended() && !is_preempted_ : !is_over_ && !is_told && !lost) return;
  if (!stop_.started() && !is_preempted_ && !view.ended() && (is_looking() || keep_workers()))
    return;
  send(is_told && view.end == GenerationEnd::kStoppedAtOnce ? stop_.on_kill(now())
                                                            : stop_.on_failure(now()));
}

void Supervisor::send(int signal) {
  if (signal == 0) return;
  if (stop_.started()) board_.stopping();
  terminated_ = terminated_ || signal == SIGTERM;
  for (auto& [id, group] : groups_) {
    group.told_to_stop = true;
    signal_group(id, signal);
    // A stopped process takes no signal but SIGKILL until it is continued.
    if (signal != SIGKILL) signal_group(id, SIGCONT);
  }
}

void Supervisor::notify(int signal) {
  for (auto& [id, group] : groups_) {
    if (group.running)
      group.notices.try_emplace(signal, Group::Notice{Deadline::after(kMostToListen)});
  }
  send_notices();
}

void Supervisor::send_notices() {
  for (auto& [id, group] : groups_) {
    for (auto next = group.notices.begin(); next != group.notices.end();) {
      const auto notice = next++;
      if (is_settled(id, group, notice->first, notice->second)) group.notices.erase(notice);
    }
  }
}

// One that is starting has no handler yet, and would end.
bool Supervisor::is_settled(pid_t id, const Group& group, int signal, Group::Notice& notice) {
  if (!group.running) return true;
  const SignalFate fate = fate_of(id, signal);
  if (fate != SignalFate::kBlocked) {
    notice.blocked_until.reset();
  } else if (!notice.blocked_until) {
    notice.blocked_until = Deadline::after(kBlockedForGood);
  }
  if (fate == SignalFate::kSpares || (notice.blocked_until && notice.blocked_until->passed())) {
    ::kill(id, signal);  // Its number is its own until it is reaped, here.
    return true;
  }
  if (!notice.until.passed()) return false;
  say(concat(signal_name(signal), " not forwarded to ", describe_worker(group.worker),
             ": the worker has no handler, so the signal would kill it"));
  return true;
}

void Supervisor::wait_for_news() {
  std::optional<Deadline> wake = stop_.deadline();
  const auto at = [&](const Deadline& deadline) {
    if (!wake || deadline.instant() < wake->instant()) wake = deadline;
  };
  if (cause_by_ && !stop_.started()) at(*cause_by_);
  if (looks_until_ && is_looking() && !stop_.started()) at(*looks_until_);
  if (keeps_workers_ && !stop_.started()) at(Deadline::after(kAskAgain));
  if (standby_at_ && !standby_at_->passed()) at(*standby_at_);
  for (const auto& [id, group] : groups_) {
    if (!group.notices.empty()) at(Deadline::after(kLookAgain));
    if (group.kill_at && group.running && !group.killed) at(*group.kill_at);
    if (awaits_leaving_ && group.leaves_by && group.is_kept() && !stop_.started())
      at(*group.leaves_by);
    if (group.answers_by && group.is_kept() && !stop_.started()) at(*group.answers_by);
  }
  if (rendezvous_is_lost_) {
    wait_for(news_.fd(), wake);
  } else {
    try {
      rendezvous_.wait(news_.fd(), wake);
    } catch (const Error&) {
      // Workers have their time to save what they have.
      rendezvous_is_lost_ = std::current_exception();
      send(stop_.on_failure(now()));
    }
  }
  kill_dismissed();
  if (const auto deadline = stop_.deadline(); deadline && deadline->passed()) {
    send(stop_.on_deadline(now()));
  }
}

void Supervisor::terminate_stragglers() {
  // A shell starts background processes with SIGINT ignored, so that SIGINT alone leaves them. One
  // SIGTERM and no more: a second means to many programs that saving their state must end.
  if (!terminated_ && !stop_.killed()) send(SIGTERM);
}

bool Supervisor::any_process() const {
  return std::ranges::any_of(groups_, [](const auto& entry) { return entry.second.running; });
}

bool Supervisor::any_running() const {
  return std::ranges::any_of(
      groups_, [](const auto& entry) { return entry.second.running && !entry.second.is_standby; });
}

bool Supervisor::any_kept() const {
  return std::ranges::any_of(groups_, [](const auto& entry) { return entry.second.is_kept(); });
}

}  // namespace lockstep::inline internal
