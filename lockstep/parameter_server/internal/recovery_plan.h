#pragma once

#include <cstdint>
#include <optional>
#include <vector>

/// From where servers go on when processes were lost. Pure.
namespace lockstep::parameter_server::inline internal {

/// What a server has in its memory and on disk.
struct ServerStanding {
  /// Updates that it has made; none in a process that is new.
  std::optional<std::int64_t> updates{};
  /// It holds all trainers' gradients for the next one.
  bool has_next = false;
  /// Updates that its whole snapshots hold.
  std::vector<std::int64_t> snapshots{};
};

struct Recovery {
  enum class Kind {
    kBegin,     ///< with the first values: nothing has been learned, or nothing that all have
    kKeep,      ///< what is in memory; a server that is one update behind makes it
    kSnapshot,  ///< take the one of `updates`
    kLost,      ///< neither memory nor a snapshot has what is needed
  };
  Kind kind = Kind::kBegin;
  std::int64_t updates = 0;
  bool operator==(const Recovery&) const = default;
};

/// For each server. Synchronous servers all end with the same number of updates: an update that one
/// of them has made is made by all, since a trainer asks for its outcome only when every server has
/// its gradients; where a server is new, the newest snapshots that all have count. Asynchronous
/// ones each have the newest of their own.
std::vector<Recovery> plan_recovery(const std::vector<ServerStanding>& servers, bool synchronous);

/// What a server knows of trainers' steps.
struct ServerClock {
  std::int64_t slowest = 0;              ///< of all, in what its shard has
  std::vector<std::int64_t> trainers{};  ///< of each; empty in a server that is new
};

/// What a trainer was, before processes were lost; nothing in one that is new.
struct TrainerStanding {
  int index = 0;  ///< by which servers know it
  std::int64_t steps = 0;
};

/// The step from which each trainer goes on. New ones go on for those that are missing, in their
/// order. Where servers have not the same it is what the one with the fewest has: a step twice on
/// others, rather than never.
std::vector<std::int64_t> plan_steps(const std::vector<std::optional<TrainerStanding>>& trainers,
                                     const std::vector<ServerClock>& servers, bool synchronous);

}  // namespace lockstep::parameter_server::inline internal
