#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/job/internal/worker_message.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// A worker's connection to `lockstep run`: the worker reports that it keeps its state, and
/// receives its rank in the next generation.
/// Threads: the one that created it.
class LauncherLink {
 public:
  /// Not connected in a program that the launcher did not start.
  /// Errors: UsageError for a second one in a process that the launcher started.
  LauncherLink();

  /// Whether a LauncherLink would be connected: a launcher has started this process, and it has not
  /// created one.
  static bool is_offered();

  bool connected() const { return link_.valid(); }
  /// Generation of this process's rank.
  std::uint64_t generation() const { return generation_; }

  /// Number of completed steps of the job at least, as known from ended processes when this one got
  /// its rank; -1: unknown.
  std::int64_t steps_made() const;

  /// It has no rank in the job yet.
  bool is_standby() const { return is_standby_; }

  /// `reads_within`: longest time between two reads of the launcher's messages, unless the process
  /// hangs.
  void say_keeps_state(std::chrono::milliseconds reads_within);
  /// The port of the generation's store, if this process serves it, is free from now on. `step`:
  /// the one that was not completed.
  void say_left_group(const Error& why, std::int64_t step);
  /// `is_complete`: the training is complete; else it continues without recovery.
  void say_done(bool is_complete = true);
  /// Before an error that ends the process: the launcher must not start workers again.
  void say_gives_up();
  /// The launcher keeps a memory file and passes it to workers that it starts.
  void leave_memory(const UniqueFd& memory);
  /// The memory file that the launcher had when it started this process, or gave a standby worker
  /// its first rank. Once; then empty.
  UniqueFd take_memory() { return std::move(memory_); }

  /// Whether this generation is over, or is within `patience`.
  bool has_news(std::chrono::milliseconds patience = {}) const;

  /// Waits for a rank in a later generation and takes it: replaces the environment. Calls
  /// `while_waiting` every few milliseconds; an exception from it ends the wait.
  /// Errors: PeerLost if the launcher has ended.
  void take_rank(const std::function<void()>& while_waiting);

  /// Whether the job goes on with fewer ranks and without this process. The launcher says so before
  /// it sends SIGTERM.
  /// Errors: PeerLost if the launcher has ended.
  bool is_removed();

 private:
  bool has_message(std::chrono::milliseconds patience) const;
  void receive(const Deadline& deadline);

  UniqueFd link_;
  UniqueFd store_;
  UniqueFd memory_;
  std::uint64_t generation_ = 1;
  bool is_standby_ = false;
  std::optional<Place> place_;  ///< that it will take
  UniqueFd store_of_place_;
  /// The generation was over before its rank was taken.
  bool is_over_ = false;
  bool is_removed_ = false;
};

}  // namespace lockstep::inline internal
