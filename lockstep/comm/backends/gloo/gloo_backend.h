#pragma once

#include "lockstep/comm/internal/backend_factory.h"

namespace lockstep::inline internal {

/// LibTorch's Gloo over TCP, for CPU tensors. Connections are accepted on config.local_address when
/// that is loopback, else on the interface of GLOO_SOCKET_IFNAME, else on config.local_address,
/// else on the address of this machine's name. abort() closes the connections; a collective that
/// already waits for its peer stays until its deadline. Errors: as Work::wait when the connections
/// cannot be made.
std::shared_ptr<NativeBackend> make_gloo_backend(const BackendConfig& config);

/// The CPU.
c10::Device gloo_device(int local_rank);

}  // namespace lockstep::inline internal
