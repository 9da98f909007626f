#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/backends/drivers.h"
#include "lockstep/comm/backends/hierarchical/failure_note.h"
#include "lockstep/comm/backends/hierarchical/piece_steps.h"
#include "lockstep/comm/backends/hierarchical/share_exchange.h"
#include "lockstep/comm/backends/shm/engine.h"
#include "lockstep/comm/internal/comm_error.h"

namespace lockstep::hierarchical {

/// A running collective, divided into pieces.
struct Collective {
  Collective(const char* its_name, std::vector<at::Tensor> its_tensors,
             std::chrono::milliseconds its_timeout)
      : name(its_name),
        tensors(std::move(its_tensors)),
        timeout(its_timeout),
        deadline(Deadline::after(its_timeout)) {}

  const char* const name;  ///< "all_reduce", for errors
  const std::vector<at::Tensor> tensors;
  const std::chrono::milliseconds timeout;
  const Deadline deadline;

  // The pipeline's.
  std::size_t pieces_left = 0;
  bool ended = false;
  std::exception_ptr error = {};
};

/// Runs collectives over several machines, in pieces, each in stages: a step within the machine,
/// one or two exchanges between machines, a step within the machine (pieces.h). Pieces overlap:
/// while Gloo's threads send one, the next takes its first step. On every rank each stage handles
/// the pieces in the same order, so the ranks need no further agreement.
///
/// Ranks are summed in order within a machine, machines in order: the same bits on all ranks and in
/// every run.
///
/// There is no thread except Gloo's: calls advance when this process starts, polls or waits for a
/// call of this group, and while it waits for another group of this backend.
/// Threads: any.
/// Lifetime: keeps tensors until their collective has ended.
/// Errors: UnnamedCommError; UsageError for calls that differ within a machine. The first error
/// fails the group on all ranks, with the rank that failed first if it is known.
class Pipeline {
 public:
  /// Connections of the group. `reduce` and `gather` are two groups of the same local ranks,
  /// because each handles its collectives in the order of pieces. `exchange` is null if this rank
  /// has no share; it must outlive the pipeline.
  struct Connections {
    shm::Engine& reduce;
    shm::Engine& gather;
    ShareExchange* exchange;
    std::shared_ptr<Signal> signal;
    FailureNote note;
    /// Notifies all peers that the group has failed. Called once.
    std::function<void()> abort;
  };

  explicit Pipeline(Connections connections);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Starts a collective of at least one piece and advances it as far as peers allow.
  std::shared_ptr<Collective> start(const char* name,
                                    std::vector<std::unique_ptr<PieceSteps>> pieces,
                                    std::vector<at::Tensor> tensors,
                                    std::chrono::milliseconds timeout);
  /// Advances this group, and every few milliseconds all groups of the process, as waits do.
  /// Returns whether the collective has ended, with or without an error.
  bool poll(const Collective& task);
  /// Waits for the collective, at most until `until`. Returns whether it has ended. Throws its
  /// error.
  bool wait(const Collective& task, Deadline until);
  /// After a wait() that has not ended.
  /// Errors: UnnamedCommError.
  [[noreturn]] static void throw_incomplete(const Collective& task,
                                            std::chrono::milliseconds waited);
  /// Whether none is running.
  bool idle();
  /// Moves everything on until `done` is true, until `until` at most, and while there is anything
  /// of this process to move. `done` is asked every other millisecond. Returns whether it is.
  bool drive_until(const std::function<bool()>& done, Deadline until);
  /// Ends the group, of which another connection has failed with this error of Gloo. Throws what it
  /// has ended with.
  [[noreturn]] void give_up(const std::exception_ptr& error);
  /// Tells those who wait for this rank that a timeout of its own has expired elsewhere.
  void say_that_it_waits() const { connections_.note.say_that_it_waits(); }

 private:
  friend class Drivers<Pipeline>;
  static constexpr std::size_t kWindow = 4;

  enum class Stage { kWaiting, kBefore, kExchanging, kSpreading, kAfter, kComplete };

  struct Piece {
    std::shared_ptr<Collective> task;
    std::unique_ptr<PieceSteps> steps;
    std::uint64_t number = 0;
    Stage stage = Stage::kWaiting;
    std::shared_ptr<shm::Task> local = {};    // within the machine
    std::unique_ptr<GlooCall> exchange = {};  // between machines
  };

  /// What has to happen next: an end of a collective within the machine, or else of Gloo's.
  struct Blocker {
    shm::Engine* engine = nullptr;
    std::shared_ptr<shm::Task> task = {};
  };

  bool run_until(const std::function<bool()>& done, Deadline until);
  void advance() LOCKSTEP_REQUIRES(mutex_);
  /// Does nothing while another thread advances it. Returns whether something is under way.
  bool advance_if_free();
  void advance_pieces() LOCKSTEP_REQUIRES(mutex_);
  bool stage_ended(Piece& piece) LOCKSTEP_REQUIRES(mutex_);
  bool has_ended(shm::Engine& engine, const Piece& piece);
  void look_at_machine() LOCKSTEP_REQUIRES(mutex_);
  void look_at_connections() LOCKSTEP_REQUIRES(mutex_);
  void begin_next_stage(Piece& piece) LOCKSTEP_REQUIRES(mutex_);
  static void start_local(shm::Engine& engine, Piece& piece,
                          std::unique_ptr<shm::Operation> operation);
  const at::Tensor& staging_for(const Piece& piece) LOCKSTEP_REQUIRES(mutex_);
  Blocker find_blocker() LOCKSTEP_REQUIRES(mutex_);
  void sleep(const Blocker& blocker, std::uint64_t seen);
  void fail(const UnnamedCommError& error, bool saw_it_itself,
            const std::exception_ptr& own_error = {}) LOCKSTEP_REQUIRES(mutex_);

  Connections connections_;
  Mutex mutex_;
  std::deque<Piece> pieces_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint64_t pieces_started_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::array<at::Tensor, kWindow> staging_ LOCKSTEP_GUARDED_BY(mutex_);
  shm::CheckInterval looks_ LOCKSTEP_GUARDED_BY(mutex_);  ///< of poll()
  shm::CheckInterval machine_looks_ LOCKSTEP_GUARDED_BY(mutex_);
  shm::CheckInterval connection_looks_ LOCKSTEP_GUARDED_BY(mutex_){std::chrono::milliseconds(500)};
  std::deque<Piece> abandoned_ LOCKSTEP_GUARDED_BY(mutex_);  ///< Gloo may still write to them
  /// What ended the group.
  std::optional<UnnamedCommError> failure_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::hierarchical
