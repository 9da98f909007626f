#pragma once

#include <cstdint>
#include <optional>
#include <vector>

/// Plans from which state servers and trainers resume after a failure. Pure functions.
namespace lockstep::parameter_server::inline internal {

/// State that a server holds in memory and on disk.
struct ServerStanding {
  /// Updates that it has made; unset in a new process.
  std::optional<std::int64_t> updates{};
  /// It holds all trainers' gradients of the next update.
  bool has_next = false;
  /// Update numbers of its complete snapshots.
  std::vector<std::int64_t> snapshots{};
};

/// What a server does to recover.
struct Recovery {
  enum class Kind {
    kBegin,     ///< start with initial values: no update was made, or no state is common to all
    kKeep,      ///< keep its memory; a server that is one update behind makes that update
    kSnapshot,  ///< load the snapshot of `updates`
    kLost,      ///< neither memory nor a snapshot has the needed state
  };
  Kind kind = Kind::kBegin;
  std::int64_t updates = 0;
  bool operator==(const Recovery&) const = default;
};

/// The recovery of each server. Synchronous servers end with the same number of updates: if one
/// server has made an update, all make it, since a trainer requests its result only when every
/// server has its gradients. If a server is new, they use the newest snapshot that all have.
/// Asynchronous servers each use their own newest state.
std::vector<Recovery> plan_recovery(const std::vector<ServerStanding>& servers, bool synchronous);

/// A server's counts of trainers' steps.
struct ServerClock {
  std::int64_t slowest = 0;              ///< minimum over all trainers, as in its shard
  std::vector<std::int64_t> trainers{};  ///< by trainer; empty in a new server
};

/// A trainer before the failure; none for a new process.
struct TrainerStanding {
  int index = 0;  ///< its index on the servers
  std::int64_t steps = 0;
};

/// The step from which each trainer resumes. New trainers replace missing ones, in their order. If
/// servers differ, the one with the fewest steps decides: other servers may then get a step twice,
/// but no server misses one.
std::vector<std::int64_t> plan_steps(const std::vector<std::optional<TrainerStanding>>& trainers,
                                     const std::vector<ServerClock>& servers, bool synchronous);

}  // namespace lockstep::parameter_server::inline internal
