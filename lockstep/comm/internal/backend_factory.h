#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/internal/backend_choice.h"
#include "lockstep/comm/internal/native_backend.h"
#include "lockstep/job/internal/launcher_address.h"

namespace lockstep::inline internal {

/// The ranks of a group cannot use the backend: what() names a rank and the reason. All ranks get
/// it, so they can fall back to another backend together.
class BackendUnavailable : public Error {
 public:
  using Error::Error;
  /// what() is `prefix + reason`.
  BackendUnavailable(const std::string& prefix, std::string reason)
      : Error(prefix + reason), reason_(std::move(reason)) {}
  const char* name() const noexcept override { return "BackendUnavailable"; }
  /// Without group and rank, if it is known apart.
  std::string reason() const { return reason_.empty() ? what() : reason_; }

 private:
  std::string reason_;
};

/// Inputs of make_backend().
struct BackendConfig {
  c10::intrusive_ptr<c10d::Store> store;  ///< this group's own keys
  int rank;
  int world_size;
  int local_rank;                             ///< picks the CUDA device
  int local_world_size;                       ///< ranks of the job that share this machine
  std::chrono::milliseconds timeout;          ///< of a collective
  std::chrono::milliseconds connect_timeout;  ///< for all ranks to be connected
  /// Address of this machine on which the group accepts connections; empty: the backend chooses.
  std::string local_address;
  std::string group_name;
  /// Which of the group's ranks share memory; empty: unknown.
  MemoryDomains domains = {};
  /// Called every few milliseconds while the group connects; an exception from it ends that. May be
  /// empty.
  std::function<void()> while_waiting = {};
};

/// Device of this rank's tensors for a backend: the CPU, or its CUDA device. The table of backends
/// is in comm/backends/table.cpp, one layer up.
/// Errors: UsageError with the backends of this build if `name` is unknown, or if this machine has
/// no device for it.
c10::Device backend_device(const std::string& name, int local_rank);

/// Creates the backend and connects it.
/// Errors: as backend_device; those of its connections.
std::shared_ptr<NativeBackend> make_backend(const std::string& name, const BackendConfig& config);

/// Whether this is a CUDA build and the machine has that many devices.
bool has_cuda_device_each(int local_world_size);

/// The MPI of this build.
MpiLibrary mpi_library();

/// Returns rank 0's `text` on all ranks of a job that mpirun started; other ranks wait for rank 0's
/// call. At most 511 bytes.
/// Errors: UsageError in a build without MPI, or if MPI has fewer than `world_size` processes;
/// std::runtime_error with MPI's text, also at the deadline.
std::string broadcast_by_mpi(std::string text, int world_size, const Deadline& deadline);

}  // namespace lockstep::inline internal
