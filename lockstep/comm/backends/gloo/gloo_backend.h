#pragma once

#include "lockstep/comm/backend_factory.h"

namespace lockstep {

/// LibTorch's Gloo over TCP, for CPU tensors. Connections are accepted on config.local_address,
/// else on the interface of GLOO_SOCKET_IFNAME, else on the address of this machine's name.
/// Destroying it with collectives still under way closes the connections and waits for no peer.
/// Errors: as Work::wait when the connections cannot be made.
BackendInstance make_gloo_backend(const BackendConfig& config);

}  // namespace lockstep
