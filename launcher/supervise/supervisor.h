#pragma once

#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "diagnose/verdict/attempt_outcome.h"
#include "diagnose/verdict/hang_verdict.h"
#include "diagnose/verdict/shared_calls.h"
#include "launcher/job/launch_options.h"
#include "launcher/rendezvous/job_rendezvous.h"
#include "launcher/supervise/group_guard.h"
#include "launcher/supervise/job_board.h"
#include "launcher/supervise/stop_sequence.h"
#include "lockstep/job/internal/worker_message.h"
#include "lockstep/os/process/child_process.h"
#include "lockstep/os/process/signals.h"
#include "lockstep/os/socket/wake_set.h"

namespace lockstep::inline internal {

struct Worker {
  int rank = 0;
  int local_rank = 0;
  /// Of its logs and its error file.
  std::filesystem::path directory{};
  SpawnOptions spawn{};
  /// What one that is there already is told instead.
  Place place{};
  int place_fd = -1;
};

/// The workers of a generation on this machine.
struct Round {
  std::uint64_t generation = 0;
  std::vector<Worker> workers{};
};

/// What becomes of workers that outlive their generation.
class Rounds {
 public:
  virtual ~Rounds() = default;
  virtual void started(const WorkerExit& worker) = 0;
  /// May add to what is known of it.
  virtual void ended(WorkerExit& exit) = 0;
  /// The generation cannot go on, and workers of this machine would in the next.
  virtual void over(AttemptOutcome& outcome) = 0;
  /// Asks for the next generation, until it is there. `kept`: the local ranks of those workers;
  /// of the others `standbys` are there already.
  /// Errors: as JobRendezvous::wait(), SystemError.
  virtual std::optional<Round> next(const std::set<int>& kept, int standbys) = 0;
  /// One that is started before there is a place for it.
  virtual Worker standby() = 0;
  /// A copy of the training's state that outlives all workers.
  virtual void keep_memory(UniqueFd memory) = 0;
  /// So many steps had been made when a worker ended.
  virtual void made_steps(std::int64_t steps) = 0;
};

/// Runs the workers of this machine to their end: starts them, watches them, stops all when one
/// fails, when the launcher is told to stop or the rendezvous ends their generation, and lets none
/// stay behind. Workers that keep their state (KeepsState) are not stopped where others fail or
/// machines come and go: they get their place in the next generation.
/// Threads: the launcher's only one, which looking at workers that hang holds up for 1.5 s at most.
/// It reaps every child of the process.
/// Lifetime: the destructor kills whatever still runs.
class Supervisor {
 public:
  /// `signals` must deliver SIGCHLD beside those that stop the job and its notify_signals.
  Supervisor(SignalFd& signals, GroupGuard& guard, JobRendezvous& rendezvous, JobBoard& board,
             const LaunchOptions& options, Rounds& rounds);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// `on_started` is called once all workers have been started.
  /// Errors: those of JobRendezvous::wait(), once the workers have been stopped; those of
  /// spawn_process() and Rounds, after which the destructor kills the workers.
  AttemptOutcome run(const Round& first, const std::function<void()>& on_started);

 private:
  // A worker with all that it started.
  struct Group {
    WorkerExit worker;
    UniqueFd link;
    SharedCalls calls;
    bool running = true;
    bool told_to_stop = false;
    bool keeps_state = false;
    /// It waits for somebody's place, for which it is ready once it has said so.
    bool is_standby = false;
    bool is_ready = false;
    /// It has said that its training is over.
    bool is_done = false;
    bool has_left_group = false;
    /// It was in a collective when the hang was looked at.
    bool waits = false;
    /// Until then it has left a group in which a rank is late, or hangs too.
    std::optional<Deadline> leaves_by;
    /// Unless it hangs, it hears what it is told within that time.
    std::chrono::milliseconds reads_within{};
    /// Until then it has taken the place that it was given.
    std::optional<Deadline> answers_by;
    /// It has no place any more: how it ends is of no account.
    bool is_dismissed = false;
    std::optional<Deadline> kill_at;
    /// A signal that it is told once it handles it.
    struct Notice {
      Deadline until;
      /// While it is blocked: when that counts as for good.
      std::optional<Deadline> blocked_until{};
    };
    std::map<int, Notice> notices;
    bool killed = false;

    // What a dismissed worker said before its end may still be read, and changes nothing.
    bool is_kept() const {
      return running && keeps_state && !is_dismissed && link.valid() && worker.late_for.empty();
    }
    bool waits_for_a_place() const { return running && is_ready && !is_dismissed && link.valid(); }
  };

  /// Of a worker that is told to leave its group, and of one that is in a collective and leaves it
  /// by itself, where the machine may be busy.
  static constexpr std::chrono::milliseconds kTimeToLeave{500};
  static constexpr std::chrono::milliseconds kTimeToLeaveCollective{5'000};

  Group& start(const Worker& worker);
  void start_standbys();
  void give_places(const Round& round, const std::set<int>& kept);
  void place(pid_t id, Group& group, const Worker& worker);
  void handle_signals();
  void read_links();
  void read_link(Group& group);
  void hear(Group& group, Received<WorkerMessage> received);
  void hear(Group& group, const KeepsState& message);
  void hear(Group& group, const LeftGroup& message);
  void hear(Group& group, const TrainingDone& message);
  void hear(Group& group, const TookPlace& message);
  void hear(Group& group, const WaitedInVain& message);
  static void hear(Group& group, const GivesUp& message);
  void note_ended_workers();
  void report_stopped_workers() const;
  void note_end_between_rounds(const WorkerExit& exit);
  void note_failed_standby(const WorkerExit& exit);
  void forget_empty_groups();
  void end_round_if_over();
  bool keep_workers();
  void dismiss(pid_t id, Group& group, std::chrono::milliseconds patience);
  void go_on();
  void send(int signal);
  void notify(int signal);
  void send_notices();
  static bool is_settled(pid_t id, const Group& group, int signal, Group::Notice& notice);
  void kill_dismissed();
  void explain_hang(const std::optional<AwaitedCall>& awaited);
  void look_for_those_that_hang();
  void tell_to_leave();
  void end_those_that_hang();
  void end_as_hanging(pid_t id, Group& group, const std::string& why);
  bool is_looking() const;
  void forget_round_before();
  void terminate_stragglers();
  void wait_for_news();
  void dismiss_standbys();
  bool any_process() const;
  bool any_running() const;
  bool any_kept() const;

  SignalFd& signals_;
  GroupGuard& guard_;
  JobRendezvous& rendezvous_;
  JobBoard& board_;
  const LaunchOptions& options_;
  Rounds& rounds_;
  StopSequence stop_;
  WakeSet news_;
  /// Those that may still have a process, by id.
  std::map<pid_t, Group> groups_;
  std::uint64_t generation_ = 0;
  /// The generation cannot go on.
  bool is_over_ = false;
  /// Workers wait for the next.
  bool keeps_workers_ = false;
  /// Until then the end of the worker is awaited whose end another one saw first.
  std::optional<Deadline> cause_by_;
  /// outcome_.lost is of a worker that left because another did.
  bool lost_follows_ = false;
  /// Some have not left a group in which a rank is late.
  bool awaits_leaving_ = false;
  bool has_looked_ = false;
  /// Of the last explanation: other ranks' deadlines of the same hang pass within that time.
  std::optional<Deadline> hang_explained_;
  /// Until then the end of those that hang is awaited.
  std::optional<Deadline> looks_until_;
  /// Exits of outcome_ that ended the round before, while workers wait for the next.
  std::ptrdiff_t told_exits_ = 0;
  /// A worker that waited for its place was preempted, saved its state and ended: so do the others.
  bool is_preempted_ = false;
  /// When the next standby worker is started.
  std::optional<Deadline> standby_at_;
  /// In a row, before they were ready.
  int failed_standbys_ = 0;
  /// SIGTERM was sent.
  bool terminated_ = false;
  /// What is thrown once the workers have ended.
  std::exception_ptr rendezvous_is_lost_;
  AttemptOutcome outcome_;
};

}  // namespace lockstep::inline internal
