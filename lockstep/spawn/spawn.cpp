#include "lockstep/spawn/spawn.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "diagnose/verdict/error_file.h"
#include "diagnose/verdict/generation_outcome.h"
#include "diagnose/verdict/worker_text.h"
#include "launcher/supervise/failure_report.h"
#include "launcher/supervise/stop_sequence.h"
#include "launcher/supervise/worker_environment.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/os/files/readable_file.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/memory/memory_file.h"
#include "lockstep/os/process/caught_signals.h"
#include "lockstep/os/process/child_process.h"
#include "lockstep/os/process/own_arguments.h"
#include "lockstep/os/socket/poll_timeout.h"
#include "lockstep/os/socket/tcp_socket.h"
#include "lockstep/program/run_main.h"

namespace lockstep {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";
constexpr std::chrono::milliseconds kSpawnShutdownTimeout{5'000};
constexpr std::chrono::milliseconds kSpawnSignalTimeout{30'000};
constexpr std::chrono::milliseconds kReapTimeout{1'000};  // of processes that are killed

std::atomic<int> spawn_calls = 0;
std::atomic<bool> runs_body = false;

// As the signal would have ended this process at once, also where another thread got it.
void end_by(int signal) {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  ::raise(signal);
}

// What this process is started for.
struct OwnCall {
  int call;
  std::vector<std::string> result_files;  // of it and of those before
};

// Of all calls so far.
std::vector<UniqueFd> result_files;

// "<which call>:<of which process>:<its descriptors for results>"
std::string mark_of(int call, pid_t process) {
  std::string mark = concat(call, ":", process);
  for (const UniqueFd& file : result_files) mark += concat(":", file.get());
  return mark;
}

// Nothing in others, such as a program that a body starts.
std::optional<OwnCall> call_to_run() {
  std::istringstream mark(env::text(env::kSpawn).value_or(""));
  std::string call;
  std::string process;
  std::getline(mark, call, ':');
  std::getline(mark, process, ':');
  if (process.empty() || process != concat(::getppid())) return {};
  OwnCall own{.call = parse_number<int>(call).value_or(0), .result_files = {}};
  for (std::string file; std::getline(mark, file, ':');) {
    own.result_files.push_back(concat("/proc/", process, "/fd/", file));
  }
  return own;
}

void write_result(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file) throw SystemError("spawn: hand over the result", errno, "give the job more memory");
}

// The processes of one call.
class SpawnedProcesses {
 public:
  SpawnedProcesses(int call, int count);
  SpawnedProcesses(const SpawnedProcesses&) = delete;
  SpawnedProcesses& operator=(const SpawnedProcesses&) = delete;
  ~SpawnedProcesses();

  // Until all have ended.
  GenerationOutcome wait();
  // By which this process was told to end; 0: none.
  int ended_by() const { return ended_by_; }

 private:
  struct Process {
    int rank;
    pid_t pid;
    UniqueFd handle;
  };

  void start(int call, int rank);
  void wait_for_news();
  void note_signals();
  void note_ended();
  void send(int signal);
  void kill_all();
  // Files without a name: nothing of them is left however this process ends.
  std::string error_file(int rank, const std::string& process) const {
    return concat("/proc/", process, "/fd/", error_files_[static_cast<std::size_t>(rank)].get());
  }

  CaughtSignals signals_{{SIGINT, SIGTERM, SIGHUP, SIGUSR1}};
  int ended_by_ = 0;
  LaunchOptions options_;
  std::vector<UniqueFd> error_files_;
  UniqueFd store_;
  StopSequence stop_;
  std::vector<Process> running_;
  GenerationOutcome outcome_;
};

SpawnedProcesses::SpawnedProcesses(int call, int count)
    : options_{.worker_count = count},
      store_(bind_tcp(options_.master_address, 0)),
      stop_(kSpawnShutdownTimeout, kSpawnSignalTimeout) {
  try {
    for (int rank = 0; rank < count; ++rank) {
      error_files_.push_back(make_memory_file("lockstep-error", 0));
      start(call, rank);
    }
  } catch (...) {
    kill_all();
    throw;
  }
}

SpawnedProcesses::~SpawnedProcesses() {
  kill_all();
}

void SpawnedProcesses::start(int call, int rank) {
  const GenerationFacts facts{.placement = {.world_size = options_.worker_count,
                                            .role_world_size = options_.worker_count,
                                            .store_host = options_.master_address,
                                            .store_port = bound_port(store_.get())},
                              .store_listen_fd = store_.get(),
                              .allowed_cpus = usable_cpu_count()};
  SpawnOptions spawn{
      .path = kThisProgram,
      .arguments = own_arguments(),
      .environment = worker_environment(options_, facts, rank, error_file(rank, concat(::getpid())),
                                        env::everything())};
  std::erase_if(spawn.environment, [](const std::string& line) {
    return line.starts_with(concat(env::kSpawn.name, "="));
  });
  spawn.environment.push_back(concat(env::kSpawn.name, "=", mark_of(call, ::getpid())));
  if (rank == 0) spawn.inherited_fds = {store_.get()};
  const pid_t pid = spawn_process(spawn);
  running_.push_back({rank, pid, {}});
  running_.back().handle = open_process(pid);
}

GenerationOutcome SpawnedProcesses::wait() {
  while (!running_.empty() && !stop_.given_up()) {
    wait_for_news();
    note_signals();
    note_ended();
    if (const auto deadline = stop_.deadline(); deadline && deadline->passed()) {
      send(stop_.on_deadline(Deadline::Clock::now()));
    }
  }
  return std::move(outcome_);
}

void SpawnedProcesses::wait_for_news() {
  std::vector<pollfd> handles = {{signals_.fd(), POLLIN, 0}};
  for (const Process& process : running_) handles.push_back({process.handle.get(), POLLIN, 0});
  const auto deadline = stop_.deadline();
  ::poll(handles.data(), handles.size(), deadline ? poll_timeout(*deadline) : -1);
}

void SpawnedProcesses::note_signals() {
  while (const auto signal = signals_.next()) {
    ended_by_ = *signal;
    send(stop_.on_signal(*signal, Deadline::Clock::now()));
  }
}

void SpawnedProcesses::note_ended() {
  bool failed = false;
  std::erase_if(running_, [&](const Process& process) {
    pollfd ready{process.handle.get(), POLLIN, 0};
    if (::poll(&ready, 1, 0) <= 0) return false;
    const ChildExit ended = reap_child(process.pid);
    const ErrorReport report = read_error_file(error_file(process.rank, "self"));
    const WorkerExit exit{.rank = process.rank,
                          .local_rank = process.rank,
                          .pid = process.pid,
                          .exit_code = ended.exit_code,
                          .signal = ended.signal,
                          .told_to_stop = stop_.started(),
                          .error_message = report.message,
                          .error_kind = report.kind,
                          .error_code = report.exit_code,
                          .crash = report.crash};
    outcome_.exits.push_back(exit);
    failed = failed || exit.failed();
    // Connections to a store whose server has ended are refused, rather than never answered.
    if (process.rank == 0) store_.reset();
    return true;
  });
  if (failed) send(stop_.on_failure(Deadline::Clock::now()));
}

void SpawnedProcesses::send(int signal) {
  if (signal == 0) return;
  for (const Process& process : running_) {
    signal_group(process.pid, signal);
    if (signal != SIGKILL) signal_group(process.pid, SIGCONT);
  }
}

// One stuck in the kernel is left to whoever reaps the children of this process when it ends.
void SpawnedProcesses::kill_all() {
  send(SIGKILL);
  const auto deadline = Deadline::after(kReapTimeout);
  for (const Process& process : running_) {
    pollfd ended{process.handle.get(), POLLIN, 0};
    while (::poll(&ended, 1, poll_timeout(deadline)) < 0 && errno == EINTR) {
    }
    ::waitpid(process.pid, nullptr, WNOHANG);
  }
  running_.clear();
}

bool ended_well(const WorkerExit& exit) {
  return exit.exit_code == 0 && exit.signal == 0;
}

std::string run_processes(const std::function<std::string(int rank)>& body, int process_count,
                          bool may_answer_signals) {
  if (process_count < 1) {
    throw UsageError(concat("spawn: ", process_count, " processes; there must be at least one"));
  }
  if (runs_body) throw UsageError("spawn: called within the body of another spawn");
  const int call = spawn_calls++;
  if (const auto wanted = call_to_run()) {
    const std::string& result_file = wanted->result_files.at(static_cast<std::size_t>(call));
    // An earlier call, which has returned in the first process.
    if (call != wanted->call) return ReadableFile(result_file).text();
    runs_body = true;
    std::exit(run_main([&] {
      const int rank = env::integer(env::kRank).value_or(0);
      const std::string result = body(rank);
      if (rank == 0 && !result.empty()) write_result(result_file, result);
      return 0;
    }));
  }
  result_files.push_back(make_memory_file("lockstep-result", 0));
  auto [outcome, ended_by] = [&] {
    SpawnedProcesses processes(call, process_count);
    GenerationOutcome all_ended = processes.wait();
    return std::pair(std::move(all_ended), processes.ended_by());
  }();
  const bool have_answered = may_answer_signals && std::ranges::all_of(outcome.exits, ended_well);
  if (ended_by != 0 && !have_answered) end_by(ended_by);
  outcome = name_crashes(std::move(outcome));
  const WorkerExit* const cause = first_cause(outcome);
  if (cause == nullptr) {
    return ReadableFile(concat("/proc/self/fd/", result_files.back().get())).text();
  }
  throw ProcessFailed(concat("spawn: ", describe_worker(*cause), " ", describe_failure(*cause)),
                      cause->rank, cause->status());
}

}  // namespace

void spawn(const std::function<void(int rank)>& body, int process_count) {
  const auto without_result = [&](int rank) {
    body(rank);
    return std::string();
  };
  run_processes(without_result, process_count, /*may_answer_signals=*/false);
}

std::string spawn_for_result(const std::function<std::string(int rank)>& body, int process_count) {
  return run_processes(body, process_count, /*may_answer_signals=*/true);
}

bool internal::repeats_first_process() {
  return !runs_body && call_to_run().has_value();
}

}  // namespace lockstep
