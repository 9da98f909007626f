#include "lockstep/launch/launcher.h"

#include <cerrno>
#include <csignal>
#include <optional>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/env.h"
#include "lockstep/launch/attempt_outcome.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/error_file.h"
#include "lockstep/launch/event_log.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/local_binding.h"
#include "lockstep/launch/log_tail.h"
#include "lockstep/launch/supervisor.h"
#include "lockstep/launch/worker_command.h"
#include "lockstep/launch/worker_environment.h"
#include "lockstep/launch/worker_logs.h"
#include "lockstep/os/find_program.h"
#include "lockstep/os/machine.h"
#include "lockstep/os/marked_processes.h"
#include "lockstep/os/out_of_memory.h"
#include "lockstep/os/tcp_socket.h"
#include "lockstep/os/temporary_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultLinePrefix = "[${role_name}${local_rank}]:";

std::vector<int> signals_to_read(const LaunchOptions& options) {
  std::vector<int> signals = options.signals_to_handle;
  signals.push_back(SIGCHLD);
  return signals;
}

// The file to execute, checked before anything is started.
std::string executable_of(const Program& program) {
  const std::string path = env::text(env::kPath).value_or("/usr/local/bin:/usr/bin:/bin");
  if (program.kind == Program::Kind::kExecutable) return find_program(program.name, path);
  if (program.kind == Program::Kind::kPythonScript && ::access(program.name.c_str(), R_OK) != 0) {
    throw ProgramError(concat("cannot read ", program.name, ": ",
                              std::generic_category().message(errno), "; check the path"),
                       ProgramError::kNotFound);
  }
  return find_program(env::text(env::kPythonExec).value_or("python3"), path);
}

fs::path job_parent(const LaunchOptions& options) {
  if (options.log_directory.empty() || options.log_directory == "/dev/null") {
    return fs::temp_directory_path();
  }
  std::error_code error;
  fs::create_directories(options.log_directory, error);
  if (error) {
    throw SystemError(concat("make the log directory ", options.log_directory), error.value(),
                      "give --log-dir a directory that you may write to");
  }
  return fs::absolute(options.log_directory);
}

std::string job_prefix(const LaunchOptions& options) {
  std::string name = options.log_directory.empty() || options.log_directory == "/dev/null"
                         ? "lockstep"
                         : options.run_id;
  for (char& c : name) {
    if (c == '/') c = '_';
  }
  return name + "_";
}

UniqueFd open_log(const fs::path& file) {
  UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) throw SystemError(concat("write the log ", file.string()), errno);
  return fd;
}

bool keeps_directory(const LaunchOptions& options) {
  return writes_logs(options) || !options.log_directory.empty();
}

// The store's socket, on the machine of rank 0 only: bound by the launcher, so that the port is the
// job's from before the first worker runs until the last has ended.
UniqueFd bind_store(const LaunchOptions& options) {
  if (options.node_rank != 0) return {};
  const auto bind = options.node_count > 1 ? bind_tcp_for_peers : bind_tcp;
  return bind(options.master_address, options.master_port);
}

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options)
      : options_(options),
        executable_(executable_of(options.program)),
        inherited_environment_(env::everything()),
        events_(event_source(options), prints_events(options)),
        processors_(bind_workers(options)),
        line_prefix_(env::text(env::kLogLinePrefix).value_or(kDefaultLinePrefix)),
        signals_(signals_to_read(options)),
        directory_(job_parent(options), job_prefix(options)),
        job_mark_(concat(::getpid(), "-", directory_.path().filename().string())),
        guard_(mark_line(), keeps_directory(options) ? "" : directory_.path()) {
    if (keeps_directory(options)) directory_.keep();
    adopt_orphans();
  }

  int run();

 private:
  struct WorkerFiles {
    UniqueFd out;
    UniqueFd err;
  };

  std::string mark_line() const { return concat(env::kJobMark.name, "=", job_mark_); }
  AttemptOutcome run_attempt(int attempt);
  Worker make_worker(const AttemptFacts& facts, int local_rank, const WorkerFiles& streams) const;
  WorkerFiles open_streams(int attempt, int local_rank, std::vector<TailedLog>& shown) const;
  UniqueFd open_stream(const StreamPlan& plan, const fs::path& file, int console_fd, int local_rank,
                       std::vector<TailedLog>& shown) const;
  void finish_tail(LogTail& tail, AttemptOutcome& outcome);
  int report_stop(const AttemptOutcome& outcome) const;

  const LaunchOptions& options_;
  const std::string executable_;
  const Environment inherited_environment_;
  EventLog events_;
  const BindingPlan processors_;
  const std::string line_prefix_;
  SignalFd signals_;
  TemporaryDirectory directory_;
  const std::string job_mark_;
  GroupGuard guard_;
};

int Launcher::run() {
  if (writes_logs(options_)) say(concat("logs in ", directory_.path().string()));
  for (int attempt = 0;; ++attempt) {
    const AttemptOutcome outcome = run_attempt(attempt);
    const WorkerExit* const cause = first_cause(outcome);
    const Verdict verdict = judge(outcome, attempt, options_.max_restarts);
    // What workers started in sessions of their own, which may hold devices and ports.
    if (verdict != Verdict::kSucceeded) kill_marked_processes(mark_line());
    events_.ended(verdict, outcome, worker_directory(directory_.path(), attempt, 0).parent_path());
    switch (verdict) {
      case Verdict::kSucceeded:
        return 0;
      case Verdict::kStopped:
        return report_stop(outcome);
      case Verdict::kRestart:
        say(concat(describe_worker(*cause), " failed", describe_failure(*cause),
                   cause->error_message.empty() ? "" : ": ", cause->error_message, "; restart ",
                   attempt + 1, " of ", options_.max_restarts));
        break;
      case Verdict::kFailed:
        say_text(failure_report(outcome, options_,
                                worker_directory(directory_.path(), attempt, 0).parent_path()));
        return cause->status();
    }
  }
}

AttemptOutcome Launcher::run_attempt(int attempt) {
  events_.begin_attempt(attempt);
  std::vector<TailedLog> shown;
  std::vector<WorkerFiles> streams;
  for (int local_rank = 0; local_rank < options_.worker_count; ++local_rank) {
    streams.push_back(open_streams(attempt, local_rank, shown));
  }
  std::optional<LogTail> tail;
  if (!shown.empty()) tail.emplace(shown);

  UniqueFd store = bind_store(options_);
  AttemptFacts facts{.attempt = attempt,
                     .master_port = options_.master_port,
                     .allowed_cpus = usable_cpu_count(),
                     .limited_time = usable_cpu_count() < allowed_cpu_count(),
                     .processors = processors_,
                     .job_mark = job_mark_};
  if (store.valid()) {
    facts.master_port = bound_port(store.get());
    facts.store_listen_fd = store.get();
  }
  events_.assigned();
  std::vector<Worker> workers;
  for (int local_rank = 0; local_rank < options_.worker_count; ++local_rank) {
    workers.push_back(
        make_worker(facts, local_rank, streams[static_cast<std::size_t>(local_rank)]));
  }

  const OutOfMemoryKills memory_kills;
  Supervisor supervisor(signals_, guard_, options_.shutdown_timeout);
  const auto on_exit = [&](const WorkerExit& exit) {
    // Connections to a store whose server has ended are refused, rather than never answered.
    if (exit.rank == 0) store.reset();
  };
  AttemptOutcome outcome =
      supervisor.run(workers, on_exit, [&](const WorkerExit& worker) { events_.started(worker); });
  const std::string shortage = memory_kills.since().value_or("");
  for (WorkerExit& exit : outcome.exits) {
    exit.memory_shortage = shortage;
    const auto directory = worker_directory(directory_.path(), attempt, exit.local_rank);
    const ErrorReport report = read_error_file(directory / "error.json");
    exit.error_message = report.message;
    exit.error_code = report.exit_code;
  }
  if (tail) finish_tail(*tail, outcome);
  return outcome;
}

Worker Launcher::make_worker(const AttemptFacts& facts, int local_rank,
                             const WorkerFiles& streams) const {
  const fs::path error_file =
      worker_directory(directory_.path(), facts.attempt, local_rank) / "error.json";
  Worker worker{.rank = options_.rank_of(local_rank), .local_rank = local_rank};
  worker.spawn.path = executable_;
  worker.spawn.cpus = processors_of(processors_, local_rank);
  const std::string python = env::text(env::kPythonExec).value_or("python3");
  worker.spawn.arguments = worker_command(options_.program, python, local_rank);
  worker.spawn.environment =
      worker_environment(options_, facts, local_rank, error_file.string(), inherited_environment_);
  worker.spawn.stdout_fd = streams.out.get();
  worker.spawn.stderr_fd = streams.err.get();
  if (worker.rank == 0 && facts.store_listen_fd) {
    worker.spawn.inherited_fds = {*facts.store_listen_fd};
  }
  return worker;
}

Launcher::WorkerFiles Launcher::open_streams(int attempt, int local_rank,
                                             std::vector<TailedLog>& shown) const {
  const fs::path directory = worker_directory(directory_.path(), attempt, local_rank);
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) throw SystemError(concat("make the directory ", directory.string()), error.value());
  const WorkerLogPlan plan = plan_worker_logs(options_, local_rank);
  return {open_stream(plan.out, directory / "stdout.log", STDOUT_FILENO, local_rank, shown),
          open_stream(plan.err, directory / "stderr.log", STDERR_FILENO, local_rank, shown)};
}

UniqueFd Launcher::open_stream(const StreamPlan& plan, const fs::path& file, int console_fd,
                               int local_rank, std::vector<TailedLog>& shown) const {
  if (plan.target == StreamPlan::Target::kConsole) return {};
  if (plan.target == StreamPlan::Target::kNowhere) return open_log("/dev/null");
  if (plan.shown) {
    shown.push_back({file, log_line_prefix(line_prefix_, options_, local_rank), console_fd});
    add_filtered_copy(options_, shown);
  }
  return open_log(file);
}

void Launcher::finish_tail(LogTail& tail, AttemptOutcome& outcome) {
  // Longer than a slow terminal needs; the logs hold everything.
  constexpr std::chrono::milliseconds kSlowConsole{30'000};
  const LogTail::Result result = tail.finish(Deadline::after(kSlowConsole), signals_);
  if (result.complete) return;
  if (outcome.stop_signal == 0) outcome.stop_signal = result.stop_signal;
  say(concat("the console did not take all of the workers' output; it is in ",
             directory_.path().string()));
}

int Launcher::report_stop(const AttemptOutcome& outcome) const {
  for (const WorkerExit& exit : outcome.exits) {
    if (exit.told_to_stop && exit.signal == SIGKILL) {
      say(concat("killed ", describe_worker(exit), ", which had not ended"));
    }
  }
  for (const WorkerExit& stuck : outcome.stuck) {
    say(concat(describe_worker(stuck),
               " is still there after SIGKILL: it hangs inside the kernel"));
  }
  say(concat("stopped by ", signal_name(outcome.stop_signal)));
  return 128 + outcome.stop_signal;
}

}  // namespace

int launch(const LaunchOptions& options) {
  // A reader of our output that goes away must not take the workers' supervision with it.
  ::signal(SIGPIPE, SIG_IGN);
  try {
    return Launcher(options).run();
  } catch (const ExecError& error) {
    throw exec_refused(options.program.name, error.errno_value());
  }
}

}  // namespace lockstep
