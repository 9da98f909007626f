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

/// A collective or a message under way. Whoever starts it may derive from it what must stay alive
/// until it has ended.
struct Task {
  Task(const char* its_name, std::chrono::milliseconds its_timeout)
      : name(its_name), timeout(its_timeout), deadline(Deadline::after(its_timeout)) {}
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  const char* name;  ///< "all_reduce", for errors
  std::chrono::milliseconds timeout;
  Deadline deadline;
  bool deadline_from_wait = false;  ///< it begins with the first wait, and has not begun
  std::unique_ptr<Operation> operation = {};  ///< null for a message
  Message message = {};

  // The engine's.
  std::uint64_t number = 0;
  bool begun = false;
  bool ended = false;
  std::exception_ptr error = {};
};

/// How often a poll that has found nothing looks further, at peers' lives and other groups: a
/// program may poll as often as it can.
/// Threads: one at a time.
class LookLimit {
 public:
  /// Whether the last look is long enough ago; then this is one.
  bool allows(Deadline::Clock::time_point now) {
    if (now < next_) return false;
    next_ = now + kBetweenLooks;
    return true;
  }

  static constexpr std::chrono::milliseconds kBetweenLooks{2};

 private:
  Deadline::Clock::time_point next_{};
};

/// Drives the collectives and messages of one group on one rank. There is no thread behind it:
/// everything moves on when this process starts, polls or waits for something of this group, and
/// while it waits for another group of this backend. A wait spins for a moment, then sleeps.
/// Threads: any; one moves things on at a time, and others may while it sleeps. abort() never
/// waits.
/// Errors: TimeoutError, PeerLost, UsageError for calls that differ between ranks, CommError; each
/// names collective, number, group and rank, and the rank that is to blame. After the first the
/// group is of no further use.
class Engine {
 public:
  struct Options {
    /// Of the job on this machine.
    int local_ranks = 1;
    /// What errors call the ranks by, where they are some of the ranks of a larger group. Empty:
    /// their own numbers.
    std::vector<int> numbers = {};
  };

  Engine(std::shared_ptr<Segment> segment, int rank, std::string group_name,
         const Options& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Starts a task and takes it as far as peers allow.
  void start(std::shared_ptr<Task> task);
  /// Moves everything on, and now and then looks, as wait() does, at what ends a wait: peers' lives
  /// and the task's deadline. Returns whether the task has ended, well or not.
  bool poll(const Task& task);
  /// Waits for the task, until `until` at most. Returns whether it has ended. Throws its error.
  bool wait(Task& task, Deadline until);
  /// After a wait() that has not ended. Errors: TimeoutError.
  [[noreturn]] void throw_incomplete(const Task& task, std::chrono::milliseconds waited) const;
  /// What errors say of the task; `ranks`: who is to blame.
  ErrorFields fields_of(const Task& task, std::vector<int> ranks = {}) const;
  /// From any thread: waits end with an error.
  void abort();
  /// Moves all engines of this process on. Returns whether any has something under way.
  static bool advance_all();

  struct Failure {
    std::string reason;           ///< without the name of a collective; empty while the group works
    std::vector<int> ranks = {};  ///< that are to blame, by the numbers that errors have
    bool is_peer_lost = false;    ///< a rank ended or left
    bool by_abort = false;        ///< a rank gave the group up for a reason that only it knows
  };
  Failure failure();
  /// Whether the group can go on: looks at every peer's life, which otherwise only waits do.
  Failure find_failure();

  /// How long a wait spins before it sleeps: at first it does not.
  void set_spin(std::chrono::nanoseconds spin) { spin_ = spin; }
  Team& team() { return team_; }

 private:
  friend class Drivers<Engine>;

  bool advance() LOCKSTEP_REQUIRES(mutex_);
  /// Does nothing while another thread advances it. Returns whether something is under way.
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
  /// Of collectives_: those before have posted all, reduced all.
  std::size_t posted_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::size_t reduced_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::uint64_t collectives_started_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::uint64_t messages_started_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  LookLimit looks_ LOCKSTEP_GUARDED_BY(mutex_);  ///< of poll()
  Failure failure_ LOCKSTEP_GUARDED_BY(mutex_);  ///< what ended the group
};

}  // namespace lockstep::shm
