#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "lockstep/comm/process_group.h"

namespace c10d {
class Store;
}

namespace lockstep {

/// Options of init_process_group. Each field: argument, else environment variable, else default.
struct InitOptions {
  /// "shm", "hierarchical", "gloo", "nccl" or "mpi": a string as in torch.distributed, so that
  /// LOCKSTEP_BACKEND and programs' flags can name it. Empty: LOCKSTEP_BACKEND, else chosen:
  /// - nccl if this LibTorch is a CUDA build and the machine has a device for each local rank,
  /// - else shm if all ranks can share memory,
  /// - else hierarchical if some ranks can,
  /// - else gloo.
  ///
  /// If sharing memory then fails for a chosen backend (shared memory is short), all ranks use gloo
  /// and rank 0 logs a warning. For a backend that you name it is an error.
  std::string backend = {};
  /// How the ranks find each other:
  /// - `env://`: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which launchers set. Without RANK
  ///   and WORLD_SIZE: the variables of mpirun or srun. Without these too: a job of one process.
  /// - `tcp://host:port`: rank 0 listens there. Needs rank and world_size.
  /// - `file:///path`: a file that all ranks can access and that does not exist yet. Needs rank and
  ///   world_size.
  /// - `torch://`: like `env://` with RANK and WORLD_SIZE, for a job with Python ranks that call
  ///   torch.distributed's init_process_group("lockstep"). `backend` is ignored.
  std::string init_method = "env://";
  /// Rank of this process, 0 to world_size - 1. Unset: from init_method.
  std::optional<int> rank = std::nullopt;
  /// Number of ranks. Unset: from init_method.
  std::optional<int> world_size = std::nullopt;
  /// Compare each collective between ranks before it runs, see ProcessGroup. Unset:
  /// LOCKSTEP_CHECK_CALLS, else true for CPU backends and false for nccl; with `torch://` false.
  std::optional<bool> check_calls = std::nullopt;
  /// Timeout of a collective. Unset: LOCKSTEP_TIMEOUT_S, else 10 minutes.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  /// Timeout for all ranks to join. Unset: LOCKSTEP_INIT_TIMEOUT_S, else 5 minutes.
  std::optional<std::chrono::milliseconds> init_timeout = std::nullopt;
  /// Called while this rank waits: every few milliseconds during the rendezvous, ten times a second
  /// during a long wait for a collective, and by Work::is_completed(). An exception from it ends
  /// the wait and is rethrown; do not use the group after that.
  /// Threads: runs on the thread that waits; for is_completed() only on the thread that started the
  /// work.
  std::function<void()> while_waiting = {};
};

/// Joins the job and makes its process group the default group. Returns when all ranks have joined.
/// A job of one process needs no launcher and opens no port. With more ranks the process ignores
/// SIGPIPE from now on, unless the program has a handler for it. Memory that the process frees
/// stays with the process for its next step, unless the environment sets malloc's own variables
/// (docs/decisions/0011).
/// Threads: main thread, one call at a time.
/// Errors: UsageError for an invalid rank, world size, address or backend, or if a default group
/// exists; TimeoutError with the ranks that did not join; SystemError if the port is in use.
ProcessGroup init_process_group(const InitOptions& options = {});

/// Joins through a c10d store that all ranks share. Needs rank and world_size; init_method is
/// ignored.
ProcessGroup init_process_group(const c10::intrusive_ptr<c10d::Store>& store,
                                const InitOptions& options);

/// Returns the default group.
/// Errors: UsageError if there is none.
ProcessGroup default_process_group();
/// Returns whether there is a default group.
bool is_initialized();

/// Returns `group`, or the default group if `group` is empty; empty if there is neither.
ProcessGroup group_or_default(ProcessGroup group);

/// Removes the default group. Its connections close when the last copy of it is destroyed.
void destroy_process_group();

}  // namespace lockstep
