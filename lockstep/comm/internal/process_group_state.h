#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/internal/backend_choice.h"
#include "lockstep/comm/internal/group_failure.h"
#include "lockstep/comm/internal/native_backend.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// What compares a collective with those of the other ranks.
enum class CallCheck {
  kNone,      ///< nothing
  kExchange,  ///< ProcessGroup, by an exchange through the backend before each call
  kBackend,   ///< the backend itself
};

}  // namespace lockstep::inline internal

namespace lockstep {

/// State that the copies of a ProcessGroup share. Constant after construction, except the counters.
struct ProcessGroup::State {
  int rank = 0;
  int world_size = 1;
  std::string name;
  std::string backend_name;
  int local_rank = 0;
  int local_world_size = 1;
  bool chose_backend = false;  ///< by memory domains; the user named none
  MemoryDomains domains;       ///< of this group's ranks; may be empty where the user named one
  std::string local_address;
  /// Of each rank the number in the group that new_group() was first called on; empty: its own.
  std::vector<int> first_ranks;
  std::chrono::milliseconds timeout{};
  c10::Device device = c10::kCPU;
  c10::intrusive_ptr<c10d::Store> store;   ///< this group's own keys
  std::shared_ptr<NativeBackend> backend;  ///< null in a group of one rank
  /// See InitOptions; also called in long waits for collectives.
  std::function<void()> while_waiting;
  const std::thread::id made_by = std::this_thread::get_id();  ///< the thread for while_waiting
  std::optional<bool> asked_to_check_calls;  ///< by the user; unset: the backend's default
  CallCheck call_check = CallCheck::kNone;

  /// May be null. Set while no call runs.
  mutable std::shared_ptr<GroupFailure> failure;

  State() = default;
  /// Waits for no peer: keeps a backend that would until the process ends.
  ~State();

  mutable std::atomic<std::uint64_t> sequence{0};            ///< collectives started
  mutable std::atomic<std::uint64_t> messages{0};            ///< calls of send and recv
  mutable std::atomic<std::uint64_t> replicas{0};            ///< calls of count_replica
  mutable std::atomic<std::uint64_t> groups_made{0};         ///< calls of new_group
  mutable std::atomic<std::uint64_t> monitored_barriers{0};  ///< calls of monitored_barrier
};

}  // namespace lockstep

namespace lockstep::inline internal {

/// Access to the state of a group, for functions in other files.
struct ProcessGroupAccess {
  /// `operation`: for the UsageError of an empty group.
  static const ProcessGroup::State& state(const ProcessGroup& group, const char* operation) {
    return group.state(operation);
  }
};

/// Creates the group's backend (none for a group of one rank).
ProcessGroup make_process_group(std::shared_ptr<ProcessGroup::State> state,
                                std::chrono::milliseconds connect_timeout);

}  // namespace lockstep::inline internal
