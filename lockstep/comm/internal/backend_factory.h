#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/internal/backend_choice.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/job/internal/launcher_address.h"

namespace lockstep {
struct ReduceIntoOptions;
}

namespace lockstep::inline internal {

/// The ranks of a group cannot use the backend: what() names a rank and why. All ranks get it
/// alike, so that they can take another one together.
class BackendUnavailable : public Error {
 public:
  using Error::Error;
  const char* name() const noexcept override { return "BackendUnavailable"; }
};

struct BackendConfig {
  c10::intrusive_ptr<c10d::Store> store;  ///< this group's own keys
  int rank;
  int world_size;
  int local_rank;                             ///< picks the CUDA device
  int local_world_size;                       ///< ranks of the job that share this machine
  std::chrono::milliseconds timeout;          ///< of a collective
  std::chrono::milliseconds connect_timeout;  ///< for all ranks to be connected
  /// Address of this machine on which the group's connections are accepted; empty: the backend's
  /// choice.
  std::string local_address;
  std::string group_name;
  /// Which of the group's ranks share memory; empty where that was not found out.
  MemoryDomains domains = {};
  /// Called every few milliseconds while the group connects; what it throws ends that. Empty:
  /// nobody asks.
  std::function<void()> while_waiting = {};
};

struct BackendInstance {
  c10::intrusive_ptr<c10d::Backend> backend = {};
  bool takes_cuda = true;
  /// Whether the backend itself raises on every rank when ranks make different calls. Then calls of
  /// no elements reach it too.
  bool checks_calls = false;
  /// As allreduce from the second tensor into the first, which comes from allocateTensor on every
  /// rank: whatever of the second no peer needs is not copied; with a scale and a sum of squares as
  /// ProcessGroup::all_reduce_into. Empty: the backend has no such way.
  std::function<c10::intrusive_ptr<c10d::Work>(const at::Tensor& output, const at::Tensor& input,
                                               const ReduceIntoOptions& options,
                                               std::chrono::milliseconds timeout)>
      all_reduce_into = {};
  /// Gives the next collective a name by which the backend compares it, too. Empty: it does not
  /// compare calls itself.
  std::function<void(std::string_view)> name_next_call = {};
  /// Whether the tensor lies in memory of allocateTensor. Goes with all_reduce_into.
  std::function<bool(const at::Tensor&)> is_shared = {};
  /// How many bytes of gradients are best exchanged at a time; 0: the backend does not say.
  std::int64_t bucket_bytes = 0;
  /// Whether collectives are under way for which the backend's destructor would wait. Empty: never.
  std::function<bool()> is_busy = {};
};

/// Where the backend called `name` expects the tensors of this rank: the CPU, or its CUDA device.
/// The table of backends is in comm/backends/table.cpp, one layer up: comm/ knows that there are
/// backends, not which.
/// Errors: UsageError naming the backends of this build when `name` is none of them, or when this
/// machine has no device for it.
c10::Device backend_device(const std::string& name, int local_rank);

/// Creates the backend and connects it. Errors: as backend_device; those of its connections.
BackendInstance make_backend(const std::string& name, const BackendConfig& config);

/// Whether this is a CUDA build and the machine has a device for each of so many ranks.
bool has_cuda_device_each(int local_world_size);

/// The MPI of this build.
MpiLibrary mpi_library();

/// `text` of rank 0, on all ranks of a job that mpirun started; returns on none before rank
/// 0 has called it. At most 511 bytes. Errors: UsageError in a build without MPI, or when MPI sees
/// fewer than `world_size` processes; std::runtime_error with MPI's text, at the deadline too.
std::string broadcast_by_mpi(std::string text, int world_size, const Deadline& deadline);

}  // namespace lockstep::inline internal
