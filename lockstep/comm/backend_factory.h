#pragma once

#include <chrono>
#include <string>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace lockstep {

struct BackendConfig {
  c10::intrusive_ptr<c10d::Store> store;  ///< this group's own keys
  int rank;
  int world_size;
  int local_rank;  ///< picks the CUDA device
  std::chrono::milliseconds timeout;
  /// Address of this machine on which the group's connections are accepted; empty: the backend's
  /// choice.
  std::string local_address;
  std::string group_name;
};

struct BackendInstance {
  c10::intrusive_ptr<c10d::Backend> backend;
  c10::Device device;  ///< where it prefers tensors
  bool takes_cuda;     ///< whether it takes CUDA tensors
};

/// Creates the backend called `name`. The table of backends is in comm/backends/table.cpp, one
/// layer up: comm/ knows that there are backends, not which. Errors: as
/// require_backend; those of the backend's own connections.
BackendInstance make_backend(const std::string& name, const BackendConfig& config);

/// Errors: UsageError naming the backends of this build when `name` is none of them.
void require_backend(const std::string& name);

/// The backend for a job of `local_world_size` ranks on this machine when the user names none.
std::string default_backend_name(int local_world_size);

}  // namespace lockstep
