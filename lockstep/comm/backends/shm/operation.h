#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/comm/backends/shm/call.h"
#include "lockstep/comm/backends/shm/team.h"

namespace lockstep::shm {

enum class Progress {
  kNone,  ///< nothing could be done: Team::blocked_on() says whose turn it is
  kSome,
  kDone,
};

/// A collective of one group on its way, in three stages: post what peers need, reduce one's own
/// part of it, finish by taking the results. The engine drives each as far as peers allow, in this
/// order, and the stages of one collective before the same stages of the next: so later collectives
/// may post while an earlier one still waits, and everything is reduced in the same order
/// everywhere. No stage ever waits.
/// Lifetime: the memory that the operation reads and writes must stay until it is finished.
class Operation {
 public:
  explicit Operation(const Call& call) : call_(call) {}
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  /// Called again and again until kDone.
  virtual Progress post(Team& team) = 0;
  virtual Progress reduce(Team&) { return Progress::kDone; }
  virtual Progress finish(Team& team) = 0;

  const Call& call() const { return call_; }
  /// Before the engine has it.
  void set_name(std::string_view name);

 protected:
  /// Writes what is called to the entry of the next round.
  void write_call(Team& team) const;
  /// Whether all have posted `round`, the first of this collective, and called the same.
  /// Errors: UsageError naming a rank that called something else, and both calls.
  bool all_called(Team& team, std::uint32_t round);

 private:
  Call call_;
  CallName name_ = {};
  bool agreed_ = false;
};

}  // namespace lockstep::shm
