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
#include "launcher/rendezvous/own_node.h"
#include "launcher/supervise/event_log.h"
#include "launcher/supervise/failure_report.h"
#include "launcher/supervise/job_agent.h"
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

bool on_one_machine(const LaunchOptions& options) {
  return options.rendezvous.max_nodes == 1;
}

JobAgentOptions agent_options(const LaunchOptions& options) {
  return {.is_on_one_machine = on_one_machine(options),
          .max_restarts = options.max_restarts,
          .where = on_one_machine(options) ? "" : concat(" on ", host_name())};
}

// The agent of this machine: carries out what JobAgent decides until the job has ended.
class Launcher final : public LiveJob, private SupervisingAgent {
 public:
  Launcher(const LaunchOptions& options, JobRendezvous& rendezvous, JobMonitor& monitor)
      : options_(options),
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
        agent_(agent_options(options), own_node(options, job_.executable)),
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
  using Step = JobAgent::Step;

  Step next_step();
  void publish();
  void join(const std::set<int>& kept);
  UniqueFd open_store() const;
  Generation begin_generation();
  void run_generation();
  void wait();
  void say_who_is_missing();
  void workers_started() override { monitor_.open(*this); }
  void worker_failed(const WorkerExit& exit) override;
  void generation_is_over(const GenerationOutcome& outcome) override;
  std::optional<Generation> next_generation(const std::set<int>& kept) override;
  std::string unreachable() const;
  int end();
  void explain_end() const;
  void explain_failure() const;
  void say_who_did_not_end() const;

  /// The number of workers changes between two generations; nothing else does.
  LaunchOptions options_;
  JobRendezvous& rendezvous_;
  JobMonitor& monitor_;
  SignalFd signals_;
  const std::string mark_;
  JobProcesses processes_;
  TemporaryDirectory directory_;
  JobOnThisMachine job_;
  EventLog events_;
  JobAgent agent_;
  JobBoard board_;
  /// Of the generation that was joined last, until it begins.
  UniqueFd store_;
  /// When who is missing is said next.
  Deadline next_word_ = Deadline::after(kFirstWord);
};

int Launcher::run() {
  if (writes_logs(options_)) say(concat("logs in ", directory_.path().string()));
  publish();
  for (;;) {
    const Step step = next_step();
    if (step == Step::kWait) {
      wait();
      continue;
    }
    if (step == Step::kEnd) {
      const int status = end();
      signals_.leave_blocked();
      return status;
    }
    if (step == Step::kJoin) join({});
    if (step == Step::kStartWorkers) run_generation();
    next_word_ = Deadline::after(kFirstWord);
  }
}

JobAgent::Step Launcher::next_step() {
  const Step step = agent_.next_step(rendezvous_.view(), rendezvous_.is_reached(),
                                     !rendezvous_.trouble().empty(), Deadline::Clock::now());
  publish();
  return step;
}

void Launcher::publish() {
  for (const std::string& text : agent_.take_texts()) say(text);
  if (agent_.take_report_change()) rendezvous_.report(agent_.report());
}

// Each time with a socket of its own for the store: the port is the generation's from before its
// first worker runs until the last has ended.
void Launcher::join(const std::set<int>& kept) {
  events_.gathering();
  if (options_.worker_count != agent_.wanted_workers()) {
    options_.worker_count = agent_.wanted_workers();
    job_.processors = bind_workers(options_);
  }
  store_.reset();
  store_ = open_store();
  agent_.join(rendezvous_.view(), kept,
              on_one_machine(options_) ? options_.master_address : rendezvous_.own_address(),
              bound_port(store_.get()));
  failpoint("launch.join");
  publish();
  failpoint("launch.joined");
}

UniqueFd Launcher::open_store() const {
  return on_one_machine(options_) ? bind_tcp(options_.master_address, options_.master_port)
                                  : bind_tcp_for_peers(rendezvous_.own_address(), 0);
}

Generation Launcher::begin_generation() {
  failpoint("launch.begin");
  const AgentView& view = rendezvous_.view();
  Generation generation{
      .number = view.generation, .placement = view.placement.value(), .store = std::move(store_)};
  agent_.begin_generation(view, Deadline::Clock::now());
  publish();
  return generation;
}

void Launcher::run_generation() {
  GenerationOutcome outcome = Supervisor(job_, {.rendezvous = rendezvous_,
                                                .signals = signals_,
                                                .guard = processes_.guard(),
                                                .events = events_,
                                                .board = board_,
                                                .agent = *this})
                                  .run(begin_generation());
  const bool ended_well =
      agent_.workers_ended(std::move(outcome), rendezvous_.view(), Deadline::Clock::now());
  // What workers started in sessions of their own, which may hold devices and ports.
  if (!ended_well) processes_.kill_what_is_left();
}

void Launcher::wait() {
  if (agent_.deadline()) return rendezvous_.wait(-1, Deadline(*agent_.deadline()));
  monitor_.open(*this);
  while (const auto signal = signals_.next()) {
    if (options_.is_notice(*signal)) continue;  // Nobody runs who could be told.
    if (*signal != SIGCHLD) return agent_.stop_by_signal(*signal);
    while (reap_any_child()) {
    }
  }
  say_who_is_missing();
  rendezvous_.wait(signals_.fd(), next_word_);
}

void Launcher::say_who_is_missing() {
  if (!next_word_.passed()) return;
  const std::string missing = rendezvous_.missing();
  if (!missing.empty()) say(concat("waiting: ", missing));
  next_word_ = Deadline::after(kNextWord);
}

// While workers run.

void Launcher::worker_failed(const WorkerExit& exit) {
  agent_.worker_failed(exit, Deadline::Clock::now());
  publish();
}

void Launcher::generation_is_over(const GenerationOutcome& outcome) {
  failpoint("launch.over");
  next_word_ = Deadline::after(kFirstWord);
  agent_.generation_over(outcome, rendezvous_.view(), Deadline::Clock::now());
  publish();
}

std::optional<Generation> Launcher::next_generation(const std::set<int>& kept) {
  Step step = next_step();
  if (step == Step::kJoin) {
    try {
      join(kept);
    } catch (const SystemError& error) {
      // A port that the user chose is free once rank 0 has left the generation before.
      if (error.errno_value() != EADDRINUSE) throw;
    }
    step = next_step();
  }
  if (step == Step::kStartWorkers) return begin_generation();
  say_who_is_missing();
  return std::nullopt;
}

// Requests.

std::string Launcher::unreachable() const {
  const std::string trouble = rendezvous_.trouble();
  return trouble.empty() ? "" : concat(trouble, ", so the other machines cannot be notified");
}

std::string Launcher::stop(const JobStop& wish) {
  const std::string objection = unreachable();
  if (!objection.empty()) return objection;
  agent_.request_stop(rendezvous_.view(), wish);
  publish();
  return "";
}

std::string Launcher::scale(int worker_count, const std::string& by) {
  std::string objection = unreachable();
  if (objection.empty()) {
    objection = agent_.scale_objection(rendezvous_.view(), worker_count);
  }
  if (!objection.empty()) return objection;
  try {
    LaunchOptions scaled = options_;
    scaled.worker_count = worker_count;
    bind_workers(scaled);
  } catch (const UsageError& error) {
    return error.what();
  }
  agent_.scale(worker_count, by);
  publish();
  return "";
}

// The end.

int Launcher::end() {
  const AgentEnd end = agent_.end();
  const bool is_failure = end == AgentEnd::kFailed;
  if (end != AgentEnd::kStuckWorkers) {
    events_.ended(end == AgentEnd::kSucceeded ? JobEnd::kSucceeded
                  : is_failure                ? JobEnd::kFailed
                                              : JobEnd::kStopped,
                  agent_.outcome());
  }
  explain_end();
  return agent_.exit_code();
}

void Launcher::explain_end() const {
  const std::string& fault = agent_.report().fault.text;
  switch (agent_.end()) {
    case AgentEnd::kSucceeded:
      return;
    case AgentEnd::kFailed:
      return explain_failure();
    case AgentEnd::kStopped:
      say_who_did_not_end();
      return say(concat("job ", rendezvous_.view().cause));
    case AgentEnd::kStuckWorkers:
      return say_text(failure_report(agent_.outcome(), options_));
    case AgentEnd::kPreempted:
      return say(concat("job ", fault, "; the other machines could not be notified"));
    case AgentEnd::kSignal:
      break;
  }
  say_who_did_not_end();
  const std::string signal = signal_name(agent_.outcome().stop_signal);
  const bool is_saved = agent_.exit_code() == kExitPreempted;
  say(is_saved ? concat("job preempted by ", signal,
                        ": the workers saved their state; start the job again to resume")
               : concat("job stopped by ", signal));
}

void Launcher::explain_failure() const {
  const AgentView& view = rendezvous_.view();
  if (!agent_.is_cause(view)) return say(concat("job failed: ", view.cause));
  say_text(failure_report(agent_.outcome(), options_));
  const std::string why = reason_after(agent_.report().fault.text, view.cause);
  if (!why.empty()) say(why);
}

void Launcher::say_who_did_not_end() const {
  for (const WorkerExit& exit : agent_.outcome().exits) {
    if (exit.told_to_stop && exit.signal == SIGKILL) {
      say(concat(describe_worker(exit), " was still running; killed by SIGKILL"));
    }
  }
  for (const WorkerExit& stuck : agent_.outcome().stuck) {
    say(describe_stuck(stuck));
  }
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
