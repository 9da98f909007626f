#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/backends/drivers.h"
#include "lockstep/comm/backends/shm/messages.h"
#include "lockstep/comm/backends/shm/operation.h"
#include "lockstep/comm/backends/shm/team.h"

namespace lockstep::shm {

/// A running collective or message. Its creator may derive from it to keep objects alive until it
/// has ended.
struct Task {
  Task(const char* its_name, std::chrono::milliseconds its_timeout)
      : name(its_name), timeout(its_timeout), deadline(Deadline::after(its_timeout)) {}
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  const char* name;  ///< "all_reduce", for errors
  std::chrono::milliseconds timeout;
  Deadline deadline;
  bool deadline_from_wait = false;            ///< the deadline starts with the first wait
  std::unique_ptr<Operation> operation = {};  ///< null for a message
  Message message = {};

  // Used by the engine.
  std::uint64_t number = 0;
  bool begun = false;
  bool ended = false;
  std::exception_ptr error = {};
};

/// Limits how often an unsuccessful poll also checks whether peers live and advances other groups,
/// because a program may poll in a tight loop.
/// Threads: one at a time.
class CheckInterval {
 public:
  explicit CheckInterval(std::chrono::milliseconds between = kBetweenLooks) : between_(between) {}

  /// Whether the last check is long enough ago; if so, records this one.
  bool allows(Deadline::Clock::time_point now) {
    if (now < next_) return false;
    next_ = now + between_;
    return true;
  }

  static constexpr std::chrono::milliseconds kBetweenLooks{2};

 private:
  std::chrono::milliseconds between_;
  Deadline::Clock::time_point next_{};
};

/// Runs the collectives and messages of one group on one rank. There is no thread: calls advance
/// when this process starts, polls or waits for a call of this group, and while it waits for
/// another group of this backend. A wait spins briefly, then sleeps.
/// Threads: any; one advances calls at a time, and others may while it sleeps. abort() never waits.
/// Errors: TimeoutError, PeerLost, CommError, and UsageError for calls that differ between ranks,
/// each with collective, number, group, rank, and the rank that caused it. After the first error
/// the group is unusable.
class Engine {
 public:
  /// Options of an engine.
  struct Options {
    /// Number of the job's ranks on this machine.
    int local_ranks = 1;
    /// Ranks as errors name them, if they are part of a larger group. Empty: their own numbers.
    std::vector<int> numbers = {};
  };

  Engine(std::shared_ptr<Segment> segment, int rank, std::string group_name,
         const Options& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Starts a task and advances it as far as peers allow.
  void start(std::shared_ptr<Task> task);
  /// Advances all calls, and from time to time checks, like wait(), what ends a wait: peers' lives
  /// and the task's deadline. Returns whether the task has ended, with or without an error.
  bool poll(const Task& task);
  /// Waits for the task, at most until `until`. Returns whether it has ended. Throws its error.
  bool wait(Task& task, Deadline until);
  /// After a wait() that has not ended.
  /// Errors: TimeoutError.
  [[noreturn]] void throw_incomplete(const Task& task, std::chrono::milliseconds waited) const;
  /// Fields of the task's errors; `ranks`: the ranks that caused them.
  ErrorFields fields_of(const Task& task, std::vector<int> ranks = {}) const;
  /// Makes waits end with an error.
  /// Threads: any.
  void abort();
  /// Advances all engines of this process. Returns whether any has a running call.
  static bool advance_all();

  struct Failure {
    std::string reason;           ///< without the collective's name; empty while the group works
    std::vector<int> ranks = {};  ///< the ranks that caused it, as errors name them
    bool is_peer_lost = false;    ///< a rank ended or left
    bool by_abort = false;        ///< a rank aborted the group for a reason that only it knows
  };
  /// Why the group failed, as far as this rank has noticed.
  Failure failure();
  /// Why the group failed, after a check of every peer's life, which otherwise only waits do.
  Failure find_failure();

  /// How long a wait spins before it sleeps; initially 0.
  void set_spin(std::chrono::nanoseconds spin) { spin_ = spin; }
  Team& team() { return team_; }

 private:
  friend class Drivers<Engine>;

  bool advance() LOCKSTEP_REQUIRES(mutex_);
  /// No effect while another thread advances it. Returns whether it has a running call.
  bool advance_if_free();
  bool advance_messages() LOCKSTEP_REQUIRES(mutex_);
  bool advance_stages() LOCKSTEP_REQUIRES(mutex_);
  void start_message(Task& task) LOCKSTEP_REQUIRES(mutex_);
  template <class Body>
  void end_all_if_it_throws(bool all_ranks_see_wrong_calls, Body&& body) LOCKSTEP_REQUIRES(mutex_);
  int awaited_by(const Task& task) const;
  Verdict check_peers_for(const Task& task) LOCKSTEP_REQUIRES(mutex_);
  void sleep(const Task& task, Deadline until) LOCKSTEP_REQUIRES(mutex_);
  bool end_if_hopeless(const Task& task) LOCKSTEP_REQUIRES(mutex_);
  void end_by(Verdict verdict, const Task* awaited) LOCKSTEP_REQUIRES(mutex_);
  template <class ErrorType>
  void end_all(const std::string& reason, const std::vector<int>& ranks = {})
      LOCKSTEP_REQUIRES(mutex_);

  std::chrono::nanoseconds spin_{};
  Mutex mutex_;  // also of the team's part in collectives
  Team team_;
  Messages messages_ LOCKSTEP_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Task>> collectives_ LOCKSTEP_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Task>> exchanges_ LOCKSTEP_GUARDED_BY(mutex_);  ///< messages
  /// Index in collectives_: those before it have posted everything; the next index: reduced
  /// everything.
  std::size_t posted_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::size_t reduced_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::uint64_t collectives_started_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::uint64_t messages_started_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  CheckInterval looks_ LOCKSTEP_GUARDED_BY(mutex_);  ///< of poll()
  Failure failure_ LOCKSTEP_GUARDED_BY(mutex_);      ///< what ended the group
};

}  // namespace lockstep::shm
