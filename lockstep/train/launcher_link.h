#pragma once

#include <cstdint>
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

  void say_keeps_state();
  /// The port of the generation's store, if this process serves it, is free from now on.
  void say_left_group(const std::string& why);
  void say_done();

  /// Whether another generation begins; never waits.
  bool has_news() const;

  /// Waits for a place in a generation after this one, and takes it: the environment is that one's
  /// from now on. Errors: PeerLost when the launcher has ended.
  void take_place();

 private:
  UniqueFd link_;
  UniqueFd store_;
  std::uint64_t generation_ = 1;
};

}  // namespace lockstep
