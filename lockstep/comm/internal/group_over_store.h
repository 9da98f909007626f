#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// This rank's place in a group that another library numbers, such as torch.distributed.
struct GroupPlace {
  int rank = 0;
  int world_size = 1;
  std::string name;                   ///< in errors
  std::chrono::milliseconds timeout;  ///< of a collective, and for all ranks to be connected
  std::optional<bool> check_calls = std::nullopt;  ///< as InitOptions
  std::function<void()> while_waiting = {};        ///< as InitOptions
};

/// Creates a group over a store that its ranks share. The store may have keys of earlier groups, if
/// their ranks created each of them together. The backend is chosen as init_process_group chooses
/// it without CUDA devices, LOCKSTEP_BACKEND included. It does not become the default group.
/// Collective.
/// Threads: any.
/// Errors: as init_process_group.
ProcessGroup make_group_over_store(c10::intrusive_ptr<c10d::Store> store, const GroupPlace& place);

}  // namespace lockstep::inline internal
