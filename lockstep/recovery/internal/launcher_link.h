#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// A worker's connection to the launcher that started it, if that is `lockstep run`: the worker
/// reports that it keeps its state, and receives its rank in the next generation.
/// Threads: the one that made it.
class LauncherLink {
 public:
  /// Not connected in a program that the launcher did not start. Errors: UsageError for a second
  /// one of a process that it did start.
  LauncherLink();

  /// Whether a LauncherLink would be connected: a launcher has started this process, and there has
  /// been none in it.
  static bool is_offered();

  bool connected() const { return link_.valid(); }
  /// Of the place that this process has.
  std::uint64_t generation() const { return generation_; }

  /// As many as the job had made at least when this process got its place, so far as processes that
  /// have ended had made them; -1: none.
  std::int64_t steps_made() const;

  /// Its first place in the job is yet to come.
  bool is_standby() const { return is_standby_; }

  /// `reads_within`: the longest time between two reads of the launcher's messages, unless the
  /// process hangs.
  void say_keeps_state(std::chrono::milliseconds reads_within);
  /// The port of the generation's store, if this process serves it, is free from now on.
  /// `step`: the one that was not completed.
  void say_left_group(const Error& why, std::int64_t step);
  /// `is_complete`: the training is; else it continues without recovery.
  void say_done(bool is_complete = true);
  /// Before it ends with an error: the launcher is not to start workers again.
  void say_gives_up();
  /// The launcher keeps a memory file, and hands it to workers that it starts.
  void leave_memory(const UniqueFd& memory);
  /// The one that the launcher had when it started this process, in a standby worker when it gave
  /// it its first place. Once; then empty.
  UniqueFd take_memory() { return std::move(memory_); }

  /// Whether this generation is over, or so within `patience`.
  bool has_news(std::chrono::milliseconds patience = {}) const;

  /// Waits for a place in a generation after this one, and takes it: the environment is that one's
  /// from now on. `while_waiting` is called every few milliseconds; what it throws ends the wait.
  /// Errors: PeerLost when the launcher has ended.
  void take_place(const std::function<void()>& while_waiting);

 private:
  UniqueFd link_;
  UniqueFd store_;
  UniqueFd memory_;
  std::uint64_t generation_ = 1;
  bool is_standby_ = false;
  /// The generation was over before its place was taken.
  bool is_over_ = false;
};

}  // namespace lockstep::inline internal
