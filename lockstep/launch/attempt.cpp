#include "lockstep/launch/attempt.h"

#include <algorithm>
#include <list>
#include <optional>
#include <set>

#include "lockstep/base/concat.h"
#include "lockstep/base/env.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/error_file.h"
#include "lockstep/launch/explain_crashes.h"
#include "lockstep/launch/log_tail.h"
#include "lockstep/launch/supervisor.h"
#include "lockstep/launch/worker_command.h"
#include "lockstep/launch/worker_logs.h"
#include "lockstep/launch/worker_streams.h"
#include "lockstep/os/machine.h"
#include "lockstep/os/out_of_memory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

int attempt_of(std::uint64_t generation) {
  return static_cast<int>(generation) - 1;
}

class Attempt final : public Rounds {
 public:
  Attempt(const JobOnThisMachine& job, const AttemptWatch& watch);

  AttemptOutcome run(Generation generation);

  void started(const WorkerExit& worker) override { watch_.events.started(worker); }
  void ended(WorkerExit& exit) override;
  void over(AttemptOutcome& outcome) override;
  std::optional<Round> next(const std::set<int>& kept) override;

 private:
  fs::path directory_of(int local_rank) const {
    return worker_directory(job_.directory, facts_.attempt, local_rank);
  }
  Round begin(Generation generation, const std::set<int>& kept);
  Worker make_worker(int local_rank, const std::string& error_file) const;
  void give_streams(Worker& worker, std::vector<TailedLog>& shown);
  LinkMessage place_of(const Worker& worker, std::uint64_t generation) const;
  void finish_tails(AttemptOutcome& outcome);

  const JobOnThisMachine& job_;
  const AttemptWatch& watch_;
  AttemptFacts facts_;
  UniqueFd store_;
  /// Of the workers that are about to be started.
  std::vector<WorkerStreams> streams_;
  /// One for each generation that brought workers whose output is shown.
  std::list<LogTail> tails_;
  std::optional<OutOfMemoryKills> memory_kills_;
};

Attempt::Attempt(const JobOnThisMachine& job, const AttemptWatch& watch)
    : job_(job),
      watch_(watch),
      facts_{.allowed_cpus = usable_cpu_count(),
             .limited_time = usable_cpu_count() < allowed_cpu_count(),
             .job_mark = job.job_mark} {}

AttemptOutcome Attempt::run(Generation generation) {
  const Round first = begin(std::move(generation), {});
  Supervisor supervisor(watch_.signals, watch_.guard, watch_.rendezvous, watch_.board, job_.options,
                        *this);
  AttemptOutcome outcome = supervisor.run(first, watch_.on_started);
  explain_crashes(outcome, job_.directory);
  finish_tails(outcome);
  return outcome;
}

Round Attempt::begin(Generation generation, const std::set<int>& kept) {
  facts_.attempt = attempt_of(generation.number);
  facts_.placement = generation.placement;
  facts_.processors = job_.processors;
  store_ = generation.placement.node_rank == 0 ? std::move(generation.store) : UniqueFd();
  facts_.store_listen_fd.reset();
  if (store_.valid()) facts_.store_listen_fd = store_.get();
  Round round{.generation = generation.number};
  streams_.clear();
  std::vector<TailedLog> shown;
  for (int local_rank = 0; local_rank < job_.options.worker_count; ++local_rank) {
    Worker worker = make_worker(local_rank, (directory_of(local_rank) / "error.json").string());
    if (kept.contains(local_rank)) {
      worker.place = place_of(worker, generation.number);
      if (worker.rank == 0) worker.place_fd = store_.get();
    } else {
      give_streams(worker, shown);
    }
    round.workers.push_back(std::move(worker));
  }
  if (!shown.empty()) tails_.emplace_back(shown);
  watch_.events.assigned(facts_.attempt, facts_.placement);
  memory_kills_.emplace();
  return round;
}

void Attempt::ended(WorkerExit& exit) {
  // Connections to a store whose server has ended are refused, rather than never answered.
  if (exit.rank == 0) store_.reset();
  if (!exit.failed()) return;
  exit.memory_shortage = memory_kills_->since().value_or("");
  const ErrorReport report = read_error_file(error_file_of(job_.directory, exit));
  exit.error_message = report.message;
  exit.error_code = report.exit_code;
  exit.crash = report.crash;
  watch_.on_failure(exit);
}

void Attempt::over(AttemptOutcome& outcome) {
  store_.reset();
  explain_crashes(outcome, job_.directory);
  watch_.on_over(outcome);
}

std::optional<Round> Attempt::next(const std::set<int>& kept) {
  std::optional<Generation> generation = watch_.next();
  if (!generation) return std::nullopt;
  return begin(std::move(*generation), kept);
}

Worker Attempt::make_worker(int local_rank, const std::string& error_file) const {
  const LaunchOptions& options = job_.options;
  Worker worker{.rank = facts_.placement.first_rank + local_rank,
                .local_rank = local_rank,
                .attempt = facts_.attempt};
  worker.spawn.path = job_.executable;
  worker.spawn.cpus = processors_of(job_.processors, local_rank);
  const std::string python = env::text(env::kPythonExec).value_or("python3");
  worker.spawn.arguments = worker_command(options.program, python, local_rank);
  worker.spawn.environment =
      worker_environment(options, facts_, local_rank, error_file, job_.inherited_environment);
  worker.spawn.control_group = job_.control_group;
  if (worker.rank == 0 && facts_.store_listen_fd) {
    worker.spawn.inherited_fds = {*facts_.store_listen_fd};
  }
  return worker;
}

void Attempt::give_streams(Worker& worker, std::vector<TailedLog>& shown) {
  streams_.push_back(open_worker_streams(job_.options, directory_of(worker.local_rank),
                                         job_.line_pattern, worker.local_rank, worker.rank, shown));
  worker.spawn.stdout_fd = streams_.back().out.get();
  worker.spawn.stderr_fd = streams_.back().err.get();
}

// What every program has from the launcher's environment it has already.
LinkMessage Attempt::place_of(const Worker& worker, std::uint64_t generation) const {
  LinkMessage place{.kind = LinkMessage::Kind::kPlace, .generation = generation};
  for (const std::string& line : worker.spawn.environment) {
    if (std::ranges::count(job_.inherited_environment, line) == 0) place.lines.push_back(line);
  }
  return place;
}

void Attempt::finish_tails(AttemptOutcome& outcome) {
  // Longer than a slow terminal needs; the logs hold everything.
  constexpr std::chrono::milliseconds kSlowConsole{30'000};
  const Deadline deadline = Deadline::after(kSlowConsole);
  bool complete = true;
  for (LogTail& tail : tails_) {
    const LogTail::Result result = tail.finish(
        deadline, watch_.signals, [&] { watch_.rendezvous.wait(watch_.signals.fd(), deadline); });
    complete = complete && result.complete;
    if (outcome.stop_signal == 0) outcome.stop_signal = result.stop_signal;
  }
  if (complete) return;
  say(concat("the console did not take all of the workers' output; it is in ",
             job_.directory.string()));
}

}  // namespace

AttemptOutcome run_attempt(const JobOnThisMachine& job, Generation generation,
                           const AttemptWatch& watch) {
  return Attempt(job, watch).run(std::move(generation));
}

}  // namespace lockstep
