#include "launcher/supervise/supervisor.h"

#include <algorithm>
#include <csignal>
#include <type_traits>
#include <utility>
#include <variant>

#include <poll.h>

#include "launcher/job/console.h"
#include "launcher/supervise/failure_report.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/job/internal/worker_link.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/process/child_process.h"
#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep::inline internal {
namespace {

// A program that loads more slowly, from a disk, is executed for all workers at once.
constexpr std::chrono::milliseconds kTimeToLoad{2'000};
// Each may have delayed a start by half a second.
constexpr int kMostLostForkServers = 3;

void wait_for(int fd, const std::optional<Deadline>& deadline) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  ::poll(&entry, 1, deadline ? poll_timeout(*deadline) : -1);
}

SupervisionState::Time now() {
  return Deadline::Clock::now();
}

}  // namespace

Supervisor::Supervisor(JobOnThisMachine& job, const SupervisorParts& parts)
    : job_(job),
      parts_(parts),
      setup_(job, parts.events),
      state_({.shutdown_timeout = job.options.shutdown_timeout,
              .standby_workers = job.options.standby_workers}) {
  news_.add(parts_.signals.fd());
}

Supervisor::~Supervisor() {
  for (const auto& [id, process] : processes_) signal_group(process.pid, SIGKILL);
}

GenerationOutcome Supervisor::run(Generation first) {
  parts_.board.generation_begins(first.number);
  begin(std::move(first), {}, 0);
  parts_.agent.workers_started();
  for (;;) {
    read_news();
    notify(happened::DecisionDue{});
    if (state_.phase == SupervisionPhase::kFinished) break;
    wait();
  }
  forget_processes();
  for (CrashNaming& naming : namings_) naming.finish();
  named_.splice(named_.end(), namings_);
  if (rendezvous_error_) {
    say_crashes();
    std::rethrow_exception(rendezvous_error_);
  }
  GenerationOutcome outcome = name_crashes(std::move(state_.outcome));
  const bool is_stopped = is_wanted(parts_.rendezvous.view().end);
  say_crashes(may_job_be_over() && !is_stopped ? first_cause(outcome) : nullptr);
  setup_.finish_output(outcome, parts_.rendezvous, parts_.signals);
  return outcome;
}

void Supervisor::begin(Generation generation, const std::set<int>& kept, int standbys) {
  const happened::GenerationReady ready{.generation = generation.number,
                                        .first_rank = generation.placement.first_rank,
                                        .worker_count = job_.options.worker_count};
  plans_ = setup_.begin(std::move(generation), kept, standbys);
  notify(ready);
  say_crashes();
}

void Supervisor::notify(const SupervisionEvent& event) {
  for (const SupervisionAction& action : step(state_, event, now())) {
    std::visit([&](const auto& what) { carry_out(what); }, action);
  }
}

void Supervisor::wait() {
  std::optional<Deadline> deadline;
  if (const auto next = next_deadline(state_, now())) deadline.emplace(*next);
  for (const CrashNaming& naming : namings_) {
    if (!deadline || naming.deadline().instant() < deadline->instant())
      deadline = naming.deadline();
  }
  if (rendezvous_error_) return wait_for(news_.fd(), deadline);
  try {
    parts_.rendezvous.wait(news_.fd(), deadline);
  } catch (const Error&) {
    // Workers have their time to save what they have.
    rendezvous_error_ = std::current_exception();
    notify(happened::RendezvousLost{});
  }
}

void Supervisor::forget_processes() {
  for (const WorkerExit& stuck : state_.outcome.stuck) parts_.board.given_up(stuck);
  for (const auto& [id, process] : processes_) parts_.guard.remove(process.pid);
  processes_.clear();
}

// What has happened.

void Supervisor::read_news() {
  read_signals();
  for (auto& [id, process] : processes_) read_messages(id, process);
  reap_workers();
  read_suspended_workers();
  read_crash_names();
  if (!(parts_.rendezvous.view() == state_.view)) {
    notify(happened::ViewChanged{parts_.rendezvous.view()});
  }
}

void Supervisor::read_signals() {
  while (const auto signal = parts_.signals.next()) {
    if (*signal == SIGCHLD) continue;
    if (job_.options.is_notice(*signal)) {
      notify(happened::NoticeSignal{*signal});
    } else {
      notify(happened::StopSignal{*signal});
    }
  }
}

void Supervisor::read_messages(WorkerId id, Process& process) {
  try {
    while (process.link.valid()) {
      auto received = receive_from_worker(process.link.get(), Deadline(now()));
      if (!received) return;
      if (std::holds_alternative<StateFile>(received->message)) {
        setup_.keep_memory(std::move(received->file));
      } else if (std::holds_alternative<CallsFile>(received->message)) {
        process.calls = SharedCalls(received->file);
      } else if (const auto* pipe = std::get_if<PythonStacksPipe>(&received->message)) {
        process.python = PythonStacks(std::move(received->file), pipe->signal);
      }
      notify(happened::MessageReceived{id, std::move(received->message)});
    }
  } catch (const PeerLost&) {
    news_.remove(process.link.get());
    process.link.reset();
    notify(happened::LinkClosed{id});
  }
}

void Supervisor::reap_workers() {
  while (const auto ended = reap_any_child()) {
    const auto found = std::ranges::find_if(
        processes_, [&](const auto& entry) { return entry.second.pid == ended->pid; });
    if (found == processes_.end()) continue;  // A helper, or an orphan of a worker.
    auto& [id, process] = *found;
    process.is_running = false;
    read_messages(id, process);  // Its last ones.
    WorkerExit exit{
        .directory = exit_of(id).directory, .exit_code = ended->exit_code, .signal = ended->signal};
    if (const RecentCalls* const calls = process.calls.get(); calls && calls->step() >= 0) {
      exit.step = std::to_string(calls->step());
      setup_.made_steps(calls->step());
    }
    if (ended->signal != 0) exit.collectives = process.calls.describe_all();
    setup_.read_error(exit);
    if (process.link.valid()) news_.remove(process.link.get());
    process.link.reset();
    notify(happened::WorkerEnded{id, std::move(exit)});
  }
  for (auto next = processes_.begin(); next != processes_.end();) {
    const auto [id, process] = std::pair(next->first, &next->second);
    if (process->is_running || signal_group(process->pid, 0)) {
      ++next;
      continue;
    }
    parts_.guard.remove(process->pid);
    next = processes_.erase(next);
    notify(happened::GroupEmptied{id});
  }
}

void Supervisor::read_suspended_workers() {
  while (const auto suspended = next_stopped_child()) {
    for (const auto& [id, process] : processes_) {
      if (process.pid == suspended->pid) notify(happened::WorkerSuspended{id, suspended->signal});
    }
  }
}

void Supervisor::read_crash_names() {
  for (auto naming = namings_.begin(); naming != namings_.end();) {
    if (!naming->proceed()) {
      ++naming;
      continue;
    }
    named_.splice(named_.end(), namings_, naming++);
  }
  if (!may_job_be_over()) say_crashes();
}

// The rendezvous has yet to answer, where no restart is left.
bool Supervisor::may_job_be_over() const {
  const AgentView& view = parts_.rendezvous.view();
  const bool is_between = state_.phase != SupervisionPhase::kRunning;
  return view.ended() || (is_between && view.restarts >= job_.options.max_restarts);
}

// `reported`: the failure that the report of the job's end explains.
void Supervisor::say_crashes(const WorkerExit* reported) {
  for (const CrashNaming& crash : std::exchange(named_, {})) {
    const WorkerExit* const cause = first_cause(crash.outcome());
    if (reported == nullptr || cause == nullptr || cause->pid != reported->pid)
      say_text(crash.text());
  }
}

// What is to be done.

void Supervisor::carry_out(const action::StartWorker& start) {
  const WorkerPlan plan =
      start.local_rank < 0
          ? setup_.standby()
          : setup_.with_streams(plans_.at(static_cast<std::size_t>(start.local_rank)));
  WorkerLink link = make_worker_link();
  SpawnOptions spawn = plan.spawn;
  spawn.inherited_fds.push_back(link.worker.get());
  spawn.environment.push_back(concat(env::kLauncherFd.name, "=", link.worker.get()));
  failpoint("launch.start");
  const pid_t pid = start_process(std::move(spawn));
  failpoint("launch.started");
  news_.add(link.launcher.get());
  processes_[start.worker] = {
      .pid = pid, .link = std::move(link.launcher), .calls = {}, .python = {}};
  parts_.guard.add(pid);
  notify(happened::WorkerStarted{start.worker, pid, plan.directory});
  parts_.board.started(exit_of(start.worker));
  setup_.started(exit_of(start.worker));
}

// The first is executed, and leaves a fork server for the others.
pid_t Supervisor::start_process(SpawnOptions spawn) {
  if (fork_server_) {
    if (const auto pid = fork_server_->start(spawn, parts_.signals.fd())) return *pid;
    if (!fork_server_->is_valid()) {
      fork_server_.reset();
      ++lost_fork_servers_;
    }
  }
  const LaunchOptions& options = job_.options;
  const bool others_follow =
      options.worker_count > 1 || options.max_restarts > 0 || options.standby_workers > 0;
  const bool leaves_server = others_follow && !fork_server_ &&
                             lost_fork_servers_ < kMostLostForkServers &&
                             ForkServer::is_in(spawn.path);
  // On processors of their own workers load the program at the same time.
  const bool waits = options.worker_count > usable_cpu_count();
  if (leaves_server) {
    fork_server_.emplace(spawn, is_of_one_worker,
                         waits ? kTimeToLoad : std::chrono::milliseconds(0));
  }
  const pid_t pid = spawn_process(spawn);
  if (leaves_server) fork_server_->started_first();
  return pid;
}

void Supervisor::carry_out(const action::SendRank& send) {
  const WorkerPlan& plan = plans_.at(static_cast<std::size_t>(send.local_rank));
  parts_.board.placed(exit_of(send.worker));
  failpoint("launch.place");
  const int link = processes_.at(send.worker).link.get();
  const int memory = job_.state_memory.get();
  if (send.is_first && job_.state_memory.valid()) send_message(link, KeptStateFile{}, memory);
  if (!send_message(link, plan.place, plan.place_fd)) notify(happened::RankNotRead{send.worker});
  failpoint("launch.placed");
}

void Supervisor::carry_out(const action::SendLeaveGroup& send) {
  send_message(processes_.at(send.worker).link.get(), LeaveGroup{.generation = send.generation});
}

// Its number is its own until it is reaped, here.
void Supervisor::carry_out(const action::SignalWorker& signal) {
  const Process& process = processes_.at(signal.worker);
  if (process.is_running) ::kill(process.pid, signal.signal);
}

void Supervisor::carry_out(const action::SignalGroup& signal) {
  signal_group(processes_.at(signal.worker).pid, signal.signal);
}

void Supervisor::carry_out(const action::SignalAll& signal) {
  if (state_.stop.started()) parts_.board.stopping();
  for (const auto& [id, process] : processes_) {
    if (signal.spared.contains(id)) continue;
    signal_group(process.pid, signal.signal);
    // A stopped process takes no signal but SIGKILL until it is continued.
    if (signal.signal != SIGKILL) signal_group(process.pid, SIGCONT);
  }
}

void Supervisor::carry_out(const action::ReadSignalFate& read) {
  const SignalFate fate = fate_of(processes_.at(read.worker).pid, read.signal);
  notify(happened::SignalFateRead{{read.worker, read.signal}, fate});
}

void Supervisor::carry_out(const action::ReportEnd& report) {
  setup_.ended(report.exit);
  if (report.exit.failed()) parts_.agent.worker_failed(report.exit);
}

void Supervisor::carry_out(const action::EndGeneration& end) {
  parts_.board.generation_is_over();
  setup_.end_generation();
  CrashNaming& naming = namings_.emplace_back(end.outcome);
  if (naming.fd() >= 0) news_.add(naming.fd());
  // The text of a failure that ends the job is final, on all machines: it says where.
  const bool is_last = parts_.rendezvous.view().restarts >= job_.options.max_restarts;
  if (is_last) {
    naming.finish();
  } else {
    naming.yield_processor();
  }
  parts_.agent.generation_is_over(naming.outcome());
}

void Supervisor::carry_out(const action::AskForGeneration& ask) {
  std::optional<Generation> next = parts_.agent.next_generation(ask.kept);
  if (!next) return;
  parts_.board.generation_continues(next->number);
  begin(std::move(*next), ask.kept, ask.standbys);
}

void Supervisor::carry_out(const action::Say& words) {
  say(words.text);
}

}  // namespace lockstep::inline internal
