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

struct InitOptions {
  /// "shm", "hierarchical", "gloo", "nccl" or "mpi". Empty: LOCKSTEP_BACKEND, else nccl when this
  /// LibTorch has CUDA and the machine a device for each local rank, else shm when all ranks can
  /// share memory, hierarchical when some can, else gloo. Where memory then turns out not to be
  /// shared, as it is short, gloo takes their place with a warning; one that was asked for by name
  /// is an error.
  std::string backend = {};
  /// Where ranks meet:
  ///   env://             RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as any launcher sets them;
  ///                      without RANK and WORLD_SIZE what mpirun or srun sets: the ranks then
  ///                      find each other without MASTER_ADDR and MASTER_PORT, or by them;
  ///                      without any of these the job is this one process
  ///   tcp://host:port    rank 0 listens there; needs rank and world_size
  ///   file:///path       a file that all ranks see, not there before; needs rank and world_size
  ///   torch://           as env:// with RANK and WORLD_SIZE, in a job that has Python ranks, too,
  ///                      whose init_process_group("lockstep") it meets; backend is not looked at
  std::string init_method = "env://";
  std::optional<int> rank = std::nullopt;
  std::optional<int> world_size = std::nullopt;
  /// Whether collectives are compared between ranks, see ProcessGroup. Unset: LOCKSTEP_CHECK_CALLS,
  /// else only for backends on the CPU.
  std::optional<bool> check_calls = std::nullopt;
  /// Deadline of a collective. Unset: LOCKSTEP_TIMEOUT_S, else 10 minutes.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  /// Deadline for all ranks to join. Unset: LOCKSTEP_INIT_TIMEOUT_S, else 5 minutes.
  std::optional<std::chrono::milliseconds> init_timeout = std::nullopt;
  /// Called every few milliseconds while other ranks are waited for, and later ten times a second
  /// in long waits for collectives, and by Work::is_completed(): what it throws ends the wait. The
  /// group may be of no use then. Threads: the one that waits; of is_completed() only the one that
  /// started the work.
  std::function<void()> while_waiting = {};
};

/// Joins the job and makes its group the default one. Returns when all ranks have joined.
/// A job of one process needs no launcher and opens no port. In others SIGPIPE, where the program
/// leaves it to end the process, is ignored from now on. Memory that the process frees stays with
/// it for its next step, unless the environment sets malloc's own variables (docs/decisions/0011).
/// Threads: main thread, once at a time.
/// Errors: UsageError for a bad rank, world size, address or backend, or when a default group
/// exists; TimeoutError naming the ranks that did not join; SystemError when the port is taken.
ProcessGroup init_process_group(const InitOptions& options = {});

/// As above over a store that all ranks share; needs rank and world_size, init_method is not looked
/// at.
ProcessGroup init_process_group(const c10::intrusive_ptr<c10d::Store>& store,
                                const InitOptions& options);

/// The default group. Errors: UsageError when there is none.
ProcessGroup default_process_group();
bool is_initialized();

/// `group`, or where it is empty the default group; empty where there is neither.
ProcessGroup group_or_default(ProcessGroup group);

/// Forgets the default group; its connections close when the last copy of it is gone.
void destroy_process_group();

}  // namespace lockstep
