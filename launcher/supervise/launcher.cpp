#include "launcher/supervise/launcher.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <optional>
#include <set>

#include "diagnose/verdict/worker_text.h"
#include "launcher/job/console.h"
#include "launcher/job/core_binding.h"
#include "launcher/logs/worker_logs.h"
#include "launcher/rendezvous/fault_of.h"
#include "launcher/rendezvous/own_node.h"
#include "launcher/supervise/event_log.h"
#include "launcher/supervise/failure_report.h"
#include "launcher/supervise/job_board.h"
#include "launcher/supervise/job_directory.h"
#include "launcher/supervise/job_processes.h"
#include "launcher/supervise/supervisor.h"
#include "launcher/supervise/worker_setup.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/os/machine/affinity.h"
#include "lockstep/os/machine/gpu_nodes.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/process/child_process.h"
#include "lockstep/os/process/find_program.h"
#include "lockstep/os/socket/tcp_socket.h"

namespace lockstep::inline internal {
namespace {

using Status = AgentReport::Status;
using std::chrono::milliseconds;

constexpr milliseconds kFirstWord{2'000};
constexpr milliseconds kNextWord{10'000};

std::vector<int> signals_to_read(const LaunchOptions& options) {
  std::vector<int> signals = options.signals_to_handle;
  signals.insert(signals.end(), options.notify_signals.begin(), options.notify_signals.end());
  signals.push_back(SIGCHLD);
  return signals;
}

// plan_core_binding() on this machine, with the GPUs that CUDA_VISIBLE_DEVICES leaves.
BindingPlan bind_workers(const LaunchOptions& options) {
  if (options.numa_binding == NumaBinding::kNone) return {};
  const std::vector<CpuPlace> cpus = read_cpu_places(allowed_cpus());
  if (cpus.empty()) {
    throw UsageError(
        "--numa-binding: cannot read which processors this process may use; omit the flag");
  }
  return plan_core_binding(
      options.numa_binding, cpus,
      visible_gpu_nodes(read_gpu_places(), env::text_or_empty(env::kCudaVisibleDevices)),
      options.worker_count);
}

// The agent of this machine: does what the rendezvous asks of it until the job has ended.
class Launcher final : public LiveJob, private SupervisingAgent {
 public:
  Launcher(const LaunchOptions& options, JobRendezvous& rendezvous, JobMonitor& monitor)
      : options_(options),
        wanted_workers_(options.worker_count),
        rendezvous_(rendezvous),
        monitor_(monitor),
        signals_(signals_to_read(options)),
        mark_(make_job_mark(options)),
        processes_(mark_, guarded_files(options, mark_)),
        directory_(make_job_directory(options, mark_)),
        job_{.options = options_,
             .executable = executable_of(options.program),
             .inherited_environment = env::everything(),
             .line_pattern = env::text(env::kLogLinePrefix).value_or(kDefaultLinePrefix),
             .processors = bind_workers(options),
             .directory = directory_.path(),
             .job_mark = mark_,
             .control_group = processes_.control_group()},
        events_(event_source(options), prints_events(options)),
        report_{.node = own_node(options, job_.executable)},
        board_(options_, rendezvous) {
    if (keeps_job_directory(options)) directory_.keep();
    if (writes_logs(options)) board_.logs_go_to(directory_.path());
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  ~Launcher() override { monitor_.close(); }

  int run();
  const std::string& mark() const override { return mark_; }
  JobStatus status() const override { return board_.status(); }
  std::string stop(const JobStop& wish) override;
  std::string scale(int worker_count, const std::string& by) override;

 private:
  bool on_one_machine() const { return options_.rendezvous.max_nodes == 1; }
  std::optional<int> next_step();
  bool has_joined() const {
    return report_.status == Status::kReady && report_.generation == rendezvous_.view().generation;
  }
  bool was_preempted() const { return report_.fault.status == kExitPreempted; }
  void join(const std::set<int>& kept);
  void say_why_again(const std::set<int>& kept);
  std::optional<int> wait_for_others();
  void say_who_is_missing();
  Generation begin_generation();
  std::optional<int> run_generation();
  void workers_started() override { monitor_.open(*this); }
  void worker_failed(const WorkerExit& exit) override;
  void generation_is_over(const GenerationOutcome& outcome) override;
  std::optional<Generation> next_generation(const std::set<int>& kept) override;
  void tell_of_failure(const WorkerExit& cause);
  /// `remedy`: for people; empty where none is known.
  void tell_of_failure(const WorkerFault& fault, std::string remedy = {});
  void say_where_it_hung(const WorkerExit& cause) const;
  void wait_for_verdict(std::uint64_t generation, milliseconds patience);
  int end();
  int give_up();
  int leave(int signal);
  int leave_after_preemption();
  void say_who_did_not_end() const;

  /// The number of workers changes between two generations; nothing else does.
  LaunchOptions options_;
  int wanted_workers_;
  JobRendezvous& rendezvous_;
  JobMonitor& monitor_;
  SignalFd signals_;
  const std::string mark_;
  JobProcesses processes_;
  TemporaryDirectory directory_;
  JobOnThisMachine job_;
  EventLog events_;
  AgentReport report_;
  JobBoard board_;
  UniqueFd store_;
  /// The one that runs, or ran last.
  std::uint64_t generation_ = 0;
  /// This machine's first rank in that generation.
  int first_rank_ = 0;
  /// What its user may do about the fault that was reported last.
  std::string remedy_;
  /// When who is missing is said next.
  Deadline next_word_ = Deadline::after(kFirstWord);
  /// The last generation whose workers ran here and have ended.
  std::uint64_t done_ = 0;
  GenerationOutcome outcome_;
  Deadline::Clock::time_point started_{};
  int restarts_told_ = 0;
};

int Launcher::run() {
  if (writes_logs(options_)) say(concat("logs in ", directory_.path().string()));
  rendezvous_.report(report_);
  for (;;) {
    if (const auto status = next_step()) {
      signals_.leave_blocked();
      return *status;
    }
  }
}

std::optional<int> Launcher::next_step() {
  switch (next_action(rendezvous_.view(), std::nullopt, done_)) {
    case AgentAction::kJoin:
      if (!rendezvous_.is_reached() || was_preempted()) break;
      if (has_joined()) break;  // Which is not known there yet.
      join({});
      return std::nullopt;
    case AgentAction::kStartWorkers:
      if (!was_preempted()) return run_generation();
      // The generation began before that was known.
      begin_generation();
      done_ = generation_;
      tell_of_failure(report_.fault);
      break;
    case AgentAction::kEnd:
      return end();
    case AgentAction::kWait:
    case AgentAction::kStopWorkers:  // There are none.
      break;
  }
  return wait_for_others();
}

// Each time with a socket of its own for the store: the port is the generation's from before its
// first worker runs until the last has ended.
void Launcher::join(const std::set<int>& kept) {
  const AgentView& view = rendezvous_.view();
  if (view.generation > 0 && !view.cause.empty()) say_why_again(kept);
  events_.gathering();
  if (options_.worker_count != wanted_workers_) {
    options_.worker_count = wanted_workers_;
    job_.processors = bind_workers(options_);
  }
  report_.node.worker_count = options_.worker_count;
  store_.reset();
  if (on_one_machine()) {
    store_ = bind_tcp(options_.master_address, options_.master_port);
    report_.node.store_host = options_.master_address;
  } else {
    report_.node.store_host = rendezvous_.own_address();
    store_ = bind_tcp_for_peers(report_.node.store_host, 0);
  }
  report_.node.store_port = bound_port(store_.get());
  report_.status = Status::kReady;
  report_.generation = view.generation;
  failpoint("launch.join");
  rendezvous_.report(report_);
  failpoint("launch.joined");
}

// `kept`: the local ranks of the workers that keep their state. With fewer workers wanted, the last
// of them end.
void Launcher::say_why_again(const std::set<int>& kept) {
  const AgentView& view = rendezvous_.view();
  const bool restarted = view.restarts > restarts_told_;
  std::vector<int> ranks;
  for (const int local_rank : kept) {
    if (local_rank < wanted_workers_) ranks.push_back(first_rank_ + local_rank);
  }
  say(concat(view.cause,
             restarted       ? concat("; restart ", view.restarts, " of ", options_.max_restarts)
             : ranks.empty() ? "; workers restart"
                             : "",
             ranks.empty() ? "" : concat("; ", rank_list(ranks), " kept")));
  if (!remedy_.empty() && view.is_own_fault) say(concat("  hint:   ", remedy_));
  restarts_told_ = view.restarts;
}

std::optional<int> Launcher::wait_for_others() {
  const AgentView before = rendezvous_.view();
  const bool was_reached = rendezvous_.is_reached();
  next_word_ = Deadline::after(kFirstWord);
  monitor_.open(*this);
  for (;;) {
    while (const auto signal = signals_.next()) {
      if (options_.is_notice(*signal)) continue;  // Nobody runs who could be told.
      if (*signal != SIGCHLD) return leave(*signal);
      while (reap_any_child()) {
      }
    }
    if (!(rendezvous_.view() == before)) return std::nullopt;
    if (rendezvous_.is_reached() != was_reached) return std::nullopt;
    if (was_preempted() && !rendezvous_.trouble().empty()) return leave_after_preemption();
    say_who_is_missing();
    rendezvous_.wait(signals_.fd(), next_word_);
  }
}

void Launcher::say_who_is_missing() {
  if (!next_word_.passed()) return;
  const std::string missing = rendezvous_.missing();
  if (!missing.empty()) say(concat("waiting: ", missing));
  next_word_ = Deadline::after(kNextWord);
}

Generation Launcher::begin_generation() {
  failpoint("launch.begin");
  const AgentView view = rendezvous_.view();
  generation_ = view.generation;
  const NodePlacement placement = view.placement.value();
  first_rank_ = placement.first_rank;
  if (!on_one_machine()) {
    say(concat("generation ", generation_, ": machine ", placement.node_rank, " of ",
               placement.node_count, ", ranks ", placement.first_rank, " to ",
               placement.first_rank + options_.worker_count - 1, " of ", placement.world_size));
  }
  report_.status = Status::kRunning;
  report_.generation = generation_;
  // It may have been told meanwhile to run another number, for which this generation was not made.
  report_.node.worker_count = wanted_workers_;
  rendezvous_.report(report_);
  started_ = Deadline::Clock::now();
  return {.number = generation_, .placement = placement, .store = std::move(store_)};
}

std::optional<int> Launcher::run_generation() {
  outcome_ = Supervisor(job_, {.rendezvous = rendezvous_,
                               .signals = signals_,
                               .guard = processes_.guard(),
                               .events = events_,
                               .board = board_,
                               .agent = *this})
                 .run(begin_generation());
  done_ = generation_;
  const WorkerExit* const cause = first_cause(outcome_);
  const bool stopped = outcome_.stop_signal != 0;
  // What workers started in sessions of their own, which may hold devices and ports.
  const bool well = cause == nullptr && !stopped && rendezvous_.view().generation == generation_ &&
                    rendezvous_.view().placement;
  if (!well) processes_.kill_what_is_left();
  if (cause != nullptr) {
    // A worker of another machine may have failed first, and its agent be about to say so.
    if (cause->follows_another() && rendezvous_.view().placement &&
        rendezvous_.view().placement->node_count > 1) {
      wait_for_verdict(generation_, milliseconds(1'000));
    }
    say_where_it_hung(*cause);
    tell_of_failure(*cause);
  } else if (report_.status == Status::kRunning) {
    report_.status = well ? Status::kSucceeded : Status::kIdle;
    rendezvous_.report(report_);
  }
  if (cause != nullptr && !outcome_.stuck.empty()) return give_up();
  if (!stopped) return std::nullopt;
  if (cause != nullptr) wait_for_verdict(generation_, milliseconds(1'000));
  if (rendezvous_.view().phase == RendezvousState::Phase::kFailed) return end();
  say_who_did_not_end();
  return leave(outcome_.stop_signal);
}

// Later it is known better, but the other machines have to know at once.
void Launcher::worker_failed(const WorkerExit& exit) {
  if (on_one_machine() || exit.told_to_stop || exit.follows_another()) return;
  tell_of_failure(exit);
}

void Launcher::generation_is_over(const GenerationOutcome& outcome) {
  done_ = generation_;
  failpoint("launch.over");
  next_word_ = Deadline::after(kFirstWord);
  if (const WorkerExit* const cause = first_cause(outcome)) {
    say_where_it_hung(*cause);
    if (cause->crash) say_text(describe_crash(*cause));
    return tell_of_failure(*cause);
  }
  if (rendezvous_.view().generation == generation_ && !outcome.lost.empty()) {
    return tell_of_failure(WorkerFault{
        .text = outcome.lost, .place = concat("step ", outcome.step), .is_hang = outcome.is_hang});
  }
  report_.status = Status::kIdle;
  rendezvous_.report(report_);
}

std::optional<Generation> Launcher::next_generation(const std::set<int>& kept) {
  if (next_action(rendezvous_.view(), std::nullopt, done_) == AgentAction::kJoin &&
      rendezvous_.is_reached() && !has_joined()) {
    try {
      join(kept);
    } catch (const SystemError& error) {
      // A port that the user chose is free once rank 0 has left the generation before.
      if (error.errno_value() != EADDRINUSE) throw;
    }
  }
  if (next_action(rendezvous_.view(), std::nullopt, done_) != AgentAction::kStartWorkers) {
    say_who_is_missing();
    return std::nullopt;
  }
  return begin_generation();
}

// Where others have told already that it is late, and not who.
void Launcher::say_where_it_hung(const WorkerExit& cause) const {
  if (cause.late_for.empty() || rendezvous_.view().placement) return;
  say(concat(describe_worker(cause), " ", describe_failure(cause)));
}

void Launcher::tell_of_failure(const WorkerExit& cause) {
  const auto after =
      std::chrono::duration_cast<std::chrono::seconds>(Deadline::Clock::now() - started_);
  const std::string where = on_one_machine() ? "" : concat(" on ", host_name());
  tell_of_failure(fault_of(cause, where, after), describe_remedy(cause));
}

void Launcher::tell_of_failure(const WorkerFault& fault, std::string remedy) {
  // The first is reported already; but a preemption ends the job between generations too.
  if (report_.status != Status::kRunning && fault.status != kExitPreempted) return;
  report_.status = Status::kFailed;
  report_.generation = generation_;
  report_.fault = fault;
  remedy_ = std::move(remedy);
  rendezvous_.report(report_);
}

// Until the generation has ended.
void Launcher::wait_for_verdict(std::uint64_t generation, milliseconds patience) {
  const Deadline deadline = Deadline::after(patience);
  while (next_action(rendezvous_.view(), generation, 0) == AgentAction::kWait &&
         !deadline.passed()) {
    rendezvous_.wait(-1, deadline);
  }
}

int Launcher::end() {
  const AgentView view = rendezvous_.view();
  const bool succeeded = view.phase == RendezvousState::Phase::kSucceeded;
  const bool stopped = is_wanted(view.end);
  events_.ended(succeeded ? JobEnd::kSucceeded
                : stopped ? JobEnd::kStopped
                          : JobEnd::kFailed,
                outcome_);
  if (succeeded) return 0;
  if (stopped) {
    say_who_did_not_end();
    say(concat("job ", view.cause));
    return view.status;
  }
  const WorkerExit* const cause = first_cause(outcome_);
  const bool is_own = cause != nullptr && done_ == view.generation && view.is_own_fault;
  if (!is_own) {
    say(concat("job failed: ", view.cause));
    return view.status;
  }
  say_text(failure_report(outcome_, options_));
  const std::string why = reason_after(report_.fault.text, view.cause);
  if (!why.empty()) say(why);
  return view.status;
}

std::string Launcher::stop(const JobStop& wish) {
  const std::string trouble = rendezvous_.trouble();
  if (!trouble.empty()) {
    return concat(trouble, ", so the other machines cannot be notified");
  }
  if (!is_stop(rendezvous_.view().end)) say(concat("stop requested by ", wish.by));
  report_.stop = wish;
  rendezvous_.report(report_);
  return "";
}

std::string Launcher::scale(int worker_count, const std::string& by) {
  const std::string trouble = rendezvous_.trouble();
  if (!trouble.empty()) return concat(trouble, ", so the other machines cannot be notified");
  if (rendezvous_.view().ended() || report_.status == Status::kSucceeded)
    return "its workers on this machine have ended";
  if (worker_count == wanted_workers_) {
    return concat("it already has ", count_text(worker_count, "worker"), " on this machine");
  }
  try {
    LaunchOptions scaled = options_;
    scaled.worker_count = worker_count;
    bind_workers(scaled);
  } catch (const UsageError& error) {
    return error.what();
  }
  say(concat(by, " requested ", count_text(worker_count, "worker"), " on this machine (now ",
             wanted_workers_, ")"));
  wanted_workers_ = worker_count;
  if (report_.status != Status::kRunning) return "";  // The report of the next generation has it.
  report_.node.worker_count = worker_count;
  rendezvous_.report(report_);
  return "";
}

// Workers that cannot be killed hold devices and ports that others would need.
int Launcher::give_up() {
  report_.status = Status::kLeaving;
  report_.farewell = "left: its workers cannot be killed";
  rendezvous_.report(report_);
  say_text(failure_report(outcome_, options_));
  return first_cause(outcome_)->status();
}

void Launcher::say_who_did_not_end() const {
  for (const WorkerExit& exit : outcome_.exits) {
    if (exit.told_to_stop && exit.signal == SIGKILL) {
      say(concat(describe_worker(exit), " did not end; killed by SIGKILL"));
    }
  }
  for (const WorkerExit& stuck : outcome_.stuck) {
    say(describe_stuck(stuck));
  }
}

// There is nobody who could end the job for all.
int Launcher::leave_after_preemption() {
  report_.status = Status::kLeaving;
  report_.farewell = "left, preempted";
  rendezvous_.report(report_);
  events_.ended(JobEnd::kStopped, outcome_);
  say(concat("job ", report_.fault.text, "; the other machines could not be notified"));
  return kExitPreempted;
}

int Launcher::leave(int signal) {
  report_.status = Status::kLeaving;
  report_.farewell = concat("left, stopped by ", signal_name(signal));
  rendezvous_.report(report_);
  outcome_.stop_signal = signal;
  events_.ended(JobEnd::kStopped, outcome_);
  const bool preempted = is_preempted(outcome_);
  say(concat("job ", preempted ? "preempted" : "stopped", " by ", signal_name(signal),
             preempted ? ": the workers saved their state; start the job again to resume" : ""));
  return preempted ? kExitPreempted : 128 + signal;
}

}  // namespace

int launch(const LaunchOptions& options, JobRendezvous& rendezvous, JobMonitor& monitor) {
  // A reader of our output that goes away must not take the workers' supervision with it.
  ::signal(SIGPIPE, SIG_IGN);
  constexpr milliseconds kFarewell{10'000};
  try {
    const int status = Launcher(options, rendezvous, monitor).run();
    rendezvous.finish(Deadline::after(kFarewell));
    return status;
  } catch (const ExecError& error) {
    throw exec_refused(options.program.name, error.errno_value());
  }
}

RendezvousRules rules_of(const LaunchOptions& options) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  const bool numbered = rendezvous.backend == RendezvousOptions::Backend::kStatic;
  return {.min_nodes = rendezvous.min_nodes,
          .max_nodes = rendezvous.max_nodes,
          .max_restarts = options.max_restarts,
          .machines_may_change = !numbered};
}

}  // namespace lockstep::inline internal
