#include "lockstep/launch/supervisor.h"

#include <algorithm>
#include <csignal>

#include "lockstep/base/concat.h"
#include "lockstep/base/count_text.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/failure_report.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

// A worker that sees another's end is faster than the system, which takes that one's memory apart
// before it says so.
constexpr milliseconds kCauseComes{1'000};
// When one rank has waited in vain, the others do so at the same time.
constexpr milliseconds kLeaves{500};
// Of one that hangs.
constexpr milliseconds kTimeToSayWhere{1'500};
// How often the next generation is asked for where nothing else happens.
constexpr milliseconds kAskAgain{1'000};
// Of a standby worker: those that train need the processors first.
constexpr milliseconds kOthersFirst{500};
constexpr int kMostFailedStandbys = 3;

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
    read_links();
    note_ended_workers();
    kill_those_that_hang();
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
  return std::move(outcome_);
}

Supervisor::Group& Supervisor::start(const Worker& worker) {
  WorkerLink link = make_worker_link();
  SpawnOptions spawn = worker.spawn;
  spawn.inherited_fds.push_back(link.worker.get());
  spawn.environment.push_back(concat(env::kLauncherFd.name, "=", link.worker.get()));
  const pid_t pid = spawn_process(spawn);
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

// Once it is known that the program waits for a place: another would train on its own.
void Supervisor::start_standbys() {
  if (options_.standby_workers == 0 || stop_.started() || keeps_workers_ || !any_kept()) return;
  if (failed_standbys_ >= kMostFailedStandbys) return;
  const auto is_standby = [](const auto& entry) {
    return entry.second.is_standby && entry.second.running;
  };
  if (std::ranges::count_if(groups_, is_standby) >= options_.standby_workers) {
    standby_at_.reset();
  } else if (!standby_at_) {
    standby_at_ = Deadline::after(kOthersFirst);
  } else if (standby_at_->passed()) {
    start(rounds_.standby()).is_standby = true;
    standby_at_.reset();
  }
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
      say(concat(signal_name(*signal), ": stopping ", count_text(groups_.size(), "worker"),
                 "; a second SIGINT (Ctrl-C) kills them"));
    }
    send(stop_.on_signal(*signal, now()));
  }
}

void Supervisor::read_links() {
  for (auto& [id, group] : groups_) {
    try {
      while (group.link.valid()) {
        auto message = receive_message(group.link.get(), Deadline(now()));
        if (!message) break;
        hear(group, std::move(*message));
      }
    } catch (const PeerLost&) {
      news_.remove(group.link.get());
      group.link.reset();
    }
  }
}

void Supervisor::hear(Group& group, LinkMessage message) {
  switch (message.kind) {
    case LinkMessage::Kind::kKeepsState:
      (group.is_standby ? group.is_ready : group.keeps_state) = true;
      if (group.is_standby) failed_standbys_ = 0;
      break;
    case LinkMessage::Kind::kMemory:
      rounds_.keep_memory(std::move(message.fd));
      break;
    case LinkMessage::Kind::kDone:
      group.keeps_state = false;
      group.is_done = true;
      break;
    case LinkMessage::Kind::kLeftGroup:
      if (message.generation != generation_ || keeps_workers_) break;
      group.has_left_group = true;
      if (message.lines.size() > 1 && message.lines[1] == "late" && !hangs_after_) {
        hangs_after_ = Deadline::after(kLeaves);
      }
      if (!cause_by_) cause_by_ = Deadline::after(kCauseComes);
      if (message.lines.size() > 2 && outcome_.step.empty()) outcome_.step = message.lines[2];
      if (outcome_.lost.empty()) {
        outcome_.lost =
            concat(describe_worker(group.worker),
                   " left its group: ", message.lines.empty() ? "" : message.lines.front());
      }
      break;
    case LinkMessage::Kind::kPlace:  // The launcher's own.
      break;
  }
}

void Supervisor::note_ended_workers() {
  while (const auto ended = reap_any_child()) {
    const auto found = groups_.find(ended->pid);
    if (found == groups_.end()) continue;  // A helper, or an orphan of a worker.
    Group& group = found->second;
    group.running = false;
    group.worker.exit_code = ended->exit_code;
    group.worker.signal = ended->signal;
    group.worker.told_to_stop = group.told_to_stop;
    group.worker.late_for = group.late_for;
    group.worker.left_early =
        group.keeps_state && !group.told_to_stop && ended->signal == 0 && ended->exit_code == 0;
    if (group.link.valid()) news_.remove(group.link.get());
    group.link.reset();
    if (!group.is_dismissed && !group.is_standby) {
      rounds_.ended(group.worker);
      outcome_.exits.push_back(group.worker);
      is_over_ = is_over_ || group.worker.failed();
    }
    if (group.is_standby && !group.is_ready && !group.is_dismissed)
      note_failed_standby(group.worker);
    board_.ended(group.worker);
  }
  forget_empty_groups();
}

void Supervisor::note_failed_standby(const WorkerExit& exit) {
  if (++failed_standbys_ < kMostFailedStandbys) return;
  say(concat("no standby workers any more: the last ", kMostFailedStandbys,
             " ended before they were ready, with ", describe_end(exit)));
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
  if (keeps_workers_ ? !view.ended() : !is_over_ && !is_told && !lost) return;
  if (!stop_.started() && keep_workers()) return;
  send(is_told && is_stop_at_once(view.cause) ? stop_.on_kill(now()) : stop_.on_failure(now()));
}

// Those that are only starting have nothing to keep, and would wait for ranks that do not come.
bool Supervisor::keep_workers() {
  const auto is_done = [](const auto& entry) { return entry.second.is_done; };
  const auto ended_well = [](const WorkerExit& exit) { return !exit.failed(); };
  if (rendezvous_.view().ended() || !any_kept() || std::ranges::any_of(groups_, is_done) ||
      std::ranges::any_of(outcome_.exits, ended_well)) {
    return false;
  }
  for (auto& [id, group] : groups_) {
    if (!group.running) {
      signal_group(id, SIGKILL);
    } else if (!group.is_kept() && !group.is_standby) {
      dismiss(id, group, milliseconds(0));
    }
  }
  keeps_workers_ = true;
  is_over_ = false;
  cause_by_.reset();
  hangs_after_.reset();
  board_.round_is_over();
  rounds_.over(outcome_);
  return true;
}

void Supervisor::dismiss(pid_t id, Group& group, milliseconds patience) {
  group.told_to_stop = true;
  group.keeps_state = false;
  group.is_dismissed = true;
  group.kill_at = Deadline::after(patience);
  signal_group(id, patience.count() == 0 ? SIGKILL : SIGTERM);
}

void Supervisor::go_on() {
  if (!keeps_workers_ || stop_.started() || !any_kept()) return;
  std::set<int> kept;
  for (const auto& [id, group] : groups_) {
    if (group.is_kept()) kept.insert(group.worker.local_rank);
  }
  const auto standbys = std::ranges::count_if(
      groups_, [](const auto& entry) { return entry.second.waits_for_a_place(); });
  const std::optional<Round> round = rounds_.next(kept, static_cast<int>(standbys));
  if (!round) return;
  keeps_workers_ = false;
  is_over_ = false;  // Those that have ended meanwhile are replaced in this one.
  generation_ = round->generation;
  outcome_ = {};
  board_.round_goes_on(generation_);
  give_places(*round, kept);
}

void Supervisor::give_places(const Round& round, const std::set<int>& kept) {
  for (auto& [id, group] : groups_) {
    if (!group.is_kept()) continue;
    const auto worker =
        std::ranges::find(round.workers, group.worker.local_rank, &Worker::local_rank);
    if (worker != round.workers.end()) {
      place(id, group, *worker);
    } else {
      dismiss(id, group, options_.shutdown_timeout);
    }
  }
  for (const Worker& worker : round.workers) {
    if (kept.contains(worker.local_rank)) continue;
    const auto standby = std::ranges::find_if(
        groups_, [](const auto& entry) { return entry.second.waits_for_a_place(); });
    if (standby == groups_.end()) {
      start(worker);
      continue;
    }
    auto& [id, group] = *standby;
    group.is_standby = group.is_ready = false;
    group.keeps_state = true;
    place(id, group, worker);
  }
}

void Supervisor::place(pid_t id, Group& group, const Worker& worker) {
  group.worker.rank = worker.rank;
  group.worker.local_rank = worker.local_rank;
  group.has_left_group = false;
  board_.placed(group.worker);
  // One that does not read is as good as one that ends.
  if (!send_message(group.link.get(), worker.place, worker.place_fd)) ::kill(id, SIGKILL);
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
  for (const auto& [id, group] : groups_) {
    if (group.running) ::kill(id, signal);  // Its number is its own until it is reaped, here.
  }
}

void Supervisor::wait_for_news() {
  std::optional<Deadline> wake = stop_.deadline();
  const auto at = [&](const Deadline& deadline) {
    if (!wake || deadline.instant() < wake->instant()) wake = deadline;
  };
  if (cause_by_ && !stop_.started()) at(*cause_by_);
  if (hangs_after_ && !stop_.started()) at(*hangs_after_);
  if (keeps_workers_ && !stop_.started()) at(Deadline::after(kAskAgain));
  if (standby_at_ && !standby_at_->passed()) at(*standby_at_);
  for (const auto& [id, group] : groups_) {
    if (group.kill_at && group.running && !group.killed) at(*group.kill_at);
  }
  rendezvous_.wait(news_.fd(), wake);
  kill_dismissed();
  if (const auto deadline = stop_.deadline(); deadline && deadline->passed()) {
    send(stop_.on_deadline(now()));
  }
}

void Supervisor::kill_dismissed() {
  for (auto& [id, group] : groups_) {
    if (!group.kill_at || group.killed || !group.kill_at->passed()) continue;
    group.killed = true;
    signal_group(id, SIGKILL);
  }
}

// They are replaced as others that end. By SIGABRT, on which a program of Lockstep's says where its
// first thread is; one that was stopped does so when it is continued, before anything else.
void Supervisor::kill_those_that_hang() {
  if (!hangs_after_ || !hangs_after_->passed() || stop_.started()) return;
  hangs_after_.reset();
  cause_by_ = Deadline::after(kTimeToSayWhere + kCauseComes);
  for (auto& [id, group] : groups_) {
    if (!group.is_kept() || group.has_left_group) continue;
    group.late_for = outcome_.lost;
    signal_first_thread(id, SIGABRT);
    signal_group(id, SIGCONT);
    group.kill_at = Deadline::after(kTimeToSayWhere);
  }
}

void Supervisor::terminate_stragglers() {
  // A shell starts background processes with SIGINT ignored, so that SIGINT alone leaves them. One
  // SIGTERM and no more: a second means to many programs that saving their state must end.
  if (!terminated_ && !stop_.killed()) send(SIGTERM);
}

void Supervisor::dismiss_standbys() {
  for (auto& [id, group] : groups_) {
    if (group.is_standby && !group.is_dismissed) dismiss(id, group, milliseconds(0));
  }
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

}  // namespace lockstep
