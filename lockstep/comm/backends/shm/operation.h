#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/comm/backends/shm/call.h"
#include "lockstep/comm/backends/shm/team.h"

namespace lockstep::shm {

/// Result of a stage.
enum class Progress {
  kNone,  ///< nothing could be done: Team::blocked_on() is the rank to wait for
  kSome,
  kDone,
};

/// A running collective of one group, in three stages: post the data that peers need, reduce this
/// rank's part, finish by reading the results. The engine advances each as far as peers allow, in
/// this order, and a stage of one collective before the same stage of the next. So later
/// collectives may post while an earlier one waits, and everything is reduced in the same order on
/// all ranks. No stage ever waits.
/// Lifetime: the memory that the operation reads and writes must stay until it is finished.
class Operation {
 public:
  explicit Operation(const Call& call) : call_(call) {}
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  /// Called repeatedly until kDone.
  virtual Progress post(Team& team) = 0;
  virtual Progress reduce(Team&) { return Progress::kDone; }
  virtual Progress finish(Team& team) = 0;

  const Call& call() const { return call_; }
  /// Call it before Engine::start.
  void set_name(std::string_view name);

 protected:
  /// Writes the call to the entry of the next round.
  void write_call(Team& team) const;
  /// Whether all ranks have posted `round`, the first of this collective, with the same call.
  /// Errors: UsageError with a rank whose call differs, and both calls.
  bool all_called(Team& team, std::uint32_t round);

 private:
  Call call_;
  CallName name_ = {};
  bool agreed_ = false;
};

}  // namespace lockstep::shm
