#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/job/internal/launcher_address.h"

namespace lockstep::inline internal {

/// What init_process_group will do, from its options and the environment.
struct InitPlan {
  using Store = RendezvousStore;
  Store store = Store::kNone;
  std::string host;
  std::uint16_t port = 0;
  /// Variables from which host and port were derived; empty: they were given.
  std::string address_source;
  std::string path;
  /// Rank 0 serves the TCP store itself, unless the launcher does.
  bool serves_store = false;
  /// Other ranks may be torch.distributed's.
  bool meets_torch = false;
  /// Socket that the launcher bound to host:port, for the rank that serves the store.
  std::optional<int> listen_fd = std::nullopt;
  /// Restart count of the job: part of every key, so that no key of an earlier generation is read.
  int generation = 0;

  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  /// Whether all ranks are known to be on this machine.
  bool one_machine = false;
  std::string backend;                             ///< empty: the default of this build and machine
  std::optional<bool> check_calls = std::nullopt;  ///< unset: the default of the backend
  std::chrono::milliseconds timeout{};
  std::chrono::milliseconds init_timeout{};
  std::function<void()> while_waiting = {};
};

/// `has_store`: the caller has a store, init_method is ignored. `mpi`: of this build.
/// Errors: UsageError with the option or variable that is missing or invalid.
InitPlan plan_init(const InitOptions& options, bool has_store, MpiLibrary mpi);

/// Timeout of a collective, from options and environment.
/// Errors: UsageError.
std::chrono::milliseconds collective_timeout(const InitOptions& options);

}  // namespace lockstep::inline internal
