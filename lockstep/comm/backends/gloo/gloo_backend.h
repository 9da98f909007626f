#pragma once

#include "lockstep/comm/internal/backend_factory.h"

namespace lockstep::inline internal {

/// LibTorch's Gloo over TCP; copies CUDA tensors through host memory in builds with CUDA. It
/// accepts connections on config.local_address if that is loopback, else on the interface of
/// GLOO_SOCKET_IFNAME, else on config.local_address, else on the address of this machine's name.
/// A call that was in progress when the last connection broke, or was closed by abort(), fails some
/// seconds later.
/// Errors: as Work::wait if the connections cannot be established.
std::shared_ptr<NativeBackend> make_gloo_backend(const BackendConfig& config);

/// The CPU.
c10::Device gloo_device(int local_rank);

}  // namespace lockstep::inline internal
