#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/os/unique_fd.h"

namespace lockstep {

/// A worker's link with the launcher that started it, where that is `lockstep run`: over it a
/// worker says that it outlives its generation, and is told its place in the next. Threads: the one
/// that made it. One object at a time.
class LauncherLink {
 public:
  /// Not connected in a program that the launcher did not start.
  LauncherLink();

  bool connected() const { return link_.valid(); }
  /// Of the place that this process has.
  std::uint64_t generation() const { return generation_; }

  /// Its first place in the job is yet to come.
  bool is_standby() const { return is_standby_; }

  void say_keeps_state();
  /// The port of the generation's store, if this process serves it, is free from now on.
  /// `is_late`: another rank did not do its part in time. `step`: the one that was not completed.
  void say_left_group(const std::string& why, bool is_late, std::int64_t step);
  void say_done();
  /// The launcher keeps a memory file, and hands it to workers that it starts.
  void leave_memory(const UniqueFd& memory);
  /// The one that the launcher had when it started this process; once.
  UniqueFd take_memory() const;

  /// Whether another generation begins; never waits.
  bool has_news() const;

  /// Waits for a place in a generation after this one, and takes it: the environment is that one's
  /// from now on. `while_waiting` is called every few milliseconds; what it throws ends the wait.
  /// Errors: PeerLost when the launcher has ended.
  void take_place(const std::function<void()>& while_waiting);

 private:
  UniqueFd link_;
  UniqueFd store_;
  std::uint64_t generation_ = 1;
  bool is_standby_ = false;
};

}  // namespace lockstep
