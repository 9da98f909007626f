#include "lockstep/launch/supervisor.h"

#include <algorithm>
#include <csignal>

#include "lockstep/base/concat.h"
#include "lockstep/base/count_text.h"
#include "lockstep/launch/console.h"

namespace lockstep {

Supervisor::~Supervisor() {
  for (const auto& [id, group] : groups_) signal_group(id, SIGKILL);
}

AttemptOutcome Supervisor::run(const std::vector<Worker>& workers, std::uint64_t generation,
                               const OnStart& on_start, const std::function<void()>& on_started,
                               const OnExit& on_exit) {
  start(workers, on_start);
  on_started();
  for (;;) {
    handle_signals();
    note_ended_workers(on_exit);
    stop_if_told(generation);
    // A job that ends well may leave processes in the background; one that is stopped may not.
    if (stop_.started() ? groups_.empty() || stop_.given_up() : !any_running()) break;
    if (!any_running()) terminate_stragglers();
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

void Supervisor::start(const std::vector<Worker>& workers, const OnStart& on_start) {
  for (const Worker& worker : workers) {
    const pid_t pid = spawn_process(worker.spawn);
    groups_[pid] = {.worker = {.rank = worker.rank, .local_rank = worker.local_rank, .pid = pid}};
    guard_.add(pid);
    board_.started(groups_[pid].worker);
    on_start(groups_[pid].worker);
  }
}

void Supervisor::handle_signals() {
  while (const auto signal = signals_.next()) {
    if (*signal == SIGCHLD) continue;
    if (std::ranges::count(notify_signals_, *signal) > 0) {
      notify(*signal);
      continue;
    }
    if (outcome_.stop_signal == 0) outcome_.stop_signal = *signal;
    if (!stop_.started()) {
      say(concat(signal_name(*signal), ": stopping ", count_text(groups_.size(), "worker"),
                 "; a second SIGINT (Ctrl-C) kills them"));
    }
    send(stop_.on_signal(*signal, Deadline::Clock::now()));
  }
}

void Supervisor::stop_if_told(std::uint64_t generation) {
  const AgentView& view = rendezvous_.view();
  if (next_action(view, generation, 0) != AgentAction::kStopWorkers) return;
  const auto now = Deadline::Clock::now();
  send(is_stop_at_once(view.cause) ? stop_.on_kill(now) : stop_.on_failure(now));
}

void Supervisor::note_ended_workers(const OnExit& on_exit) {
  bool failed = false;
  while (const auto ended = reap_any_child()) {
    const auto found = groups_.find(ended->pid);
    if (found == groups_.end()) continue;  // A helper, or an orphan of a worker.
    Group& group = found->second;
    group.running = false;
    group.worker.exit_code = ended->exit_code;
    group.worker.signal = ended->signal;
    group.worker.told_to_stop = group.told_to_stop;
    on_exit(group.worker);
    board_.ended(group.worker);
    outcome_.exits.push_back(group.worker);
    failed = failed || group.worker.failed();
  }
  forget_empty_groups();
  if (failed) send(stop_.on_failure(Deadline::Clock::now()));
}

void Supervisor::forget_empty_groups() {
  std::erase_if(groups_, [&](const auto& entry) {
    const auto& [id, group] = entry;
    if (group.running || signal_group(id, 0)) return false;
    guard_.remove(id);
    return true;
  });
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
  const auto deadline = stop_.deadline();
  rendezvous_.wait(signals_.fd(), deadline);
  if (deadline && deadline->passed()) send(stop_.on_deadline(Deadline::Clock::now()));
}

void Supervisor::terminate_stragglers() {
  // A shell starts background processes with SIGINT ignored, so that SIGINT alone leaves them. One
  // SIGTERM and no more: a second means to many programs that saving their state must end.
  if (!terminated_ && !stop_.killed()) send(SIGTERM);
}

bool Supervisor::any_running() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& entry) { return entry.second.running; });
}

}  // namespace lockstep
