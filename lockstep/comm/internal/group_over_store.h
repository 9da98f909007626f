#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// This rank's place in a group whose ranks somebody else has counted, as torch.distributed does.
struct GroupPlace {
  int rank = 0;
  int world_size = 1;
  std::string name;                   ///< in errors
  std::chrono::milliseconds timeout;  ///< of a collective, and for all ranks to be connected
  std::optional<bool> check_calls = std::nullopt;  ///< as InitOptions
  std::function<void()> while_waiting = {};        ///< as InitOptions
};

/// A group over a store that its ranks share. Earlier groups may have left keys in it, if their
/// ranks made each of them together. The backend is chosen as init_process_group chooses one
/// without CUDA devices, LOCKSTEP_BACKEND included. The group does not become the default one.
/// Collective.
/// Threads: any. Errors: as init_process_group.
ProcessGroup make_group_over_store(c10::intrusive_ptr<c10d::Store> store, const GroupPlace& place);

}  // namespace lockstep::inline internal
