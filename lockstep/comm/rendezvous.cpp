#include "lockstep/comm/rendezvous.h"

#include <cerrno>

#include <fcntl.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/store_wait.h"
#include "lockstep/os/tcp_socket.h"

namespace lockstep {
namespace {

// The socket on which this process serves the store. The launcher's is duplicated, so that a second
// init_process_group of the same process can serve on it again.
UniqueFd serving_socket(const InitPlan& plan) {
  if (plan.listen_fd) {
    UniqueFd copy(::fcntl(*plan.listen_fd, F_DUPFD_CLOEXEC, 3));
    if (copy.valid() && bound_port(copy.get()) == plan.port) {
      ::fcntl(*plan.listen_fd, F_SETFD, FD_CLOEXEC);
      return copy;
    }
    log(LogLevel::kWarning, concat("init_process_group: descriptor ", *plan.listen_fd,
                                   " from the launcher is not bound to port ", plan.port,
                                   "; binding a socket of our own"));
  }
  try {
    return bind_tcp(plan.host, plan.port);
  } catch (const SystemError& error) {
    // The address by which others reach us need not be one of ours: behind a translated address or
    // a service name there is no choice but to listen on all.
    if (error.errno_value() != EADDRNOTAVAIL) throw;
    return bind_tcp("0.0.0.0", plan.port);
  }
}

c10::intrusive_ptr<c10d::Store> open_tcp_store(const InitPlan& plan, const Deadline& deadline) {
  c10d::TCPStoreOptions options;
  options.port = plan.port;
  options.waitWorkers = false;  // join_world waits, and says for whom.
  if (plan.serves_store) {
    options.isServer = true;
    options.masterListenFd = serving_socket(plan).release();
  } else {
    wait_for_listener(plan.host, plan.port, deadline);
  }
  options.timeout = std::max(deadline.remaining(), std::chrono::milliseconds(1));
  try {
    return c10::make_intrusive<c10d::TCPStore>(plan.host, options);
  } catch (const c10::Error& error) {
    throw TimeoutError(concat("init_process_group on rank ", plan.rank, ": no store at ", plan.host,
                              " port ", plan.port,
                              "; check MASTER_ADDR, MASTER_PORT and that rank 0 runs (",
                              error.what_without_backtrace(), ")"));
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const InitPlan& plan, const Deadline& deadline) {
  if (plan.store == InitPlan::Store::kFile) {
    return c10::make_intrusive<c10d::FileStore>(plan.path, plan.world_size);
  }
  return open_tcp_store(plan, deadline);
}

void join_world(c10d::Store& store, const InitPlan& plan, const Deadline& deadline) {
  const auto key = [](int rank) { return concat("joined/", rank); };
  if (store.add(concat("claims/", plan.rank), 1) != 1) {
    throw UsageError(
        concat("init_process_group: rank ", plan.rank,
               " has joined already; two processes claim it, or the store is left over "
               "from another job: give each process a rank of its own and each job a "
               "new port or file"));
  }
  store.set(key(plan.rank), std::to_string(plan.world_size));
  std::vector<std::string> keys;
  for (int rank = 0; rank < plan.world_size; ++rank) keys.push_back(key(rank));

  const auto report = [&](const std::vector<int>& missing) {
    log(LogLevel::kWarning,
        concat("init_process_group: waiting for rank", missing.size() > 1 ? "s " : " ",
               join_numbers(missing), " of ", plan.world_size));
  };
  const auto missing = wait_for_keys(store, keys, deadline, report);
  if (!missing.empty()) {
    throw TimeoutError(concat("init_process_group on rank ", plan.rank, ": ",
                              plan.world_size - static_cast<int>(missing.size()), " of ",
                              plan.world_size, " ranks joined within ", plan.init_timeout.count(),
                              " ms; missing: ", join_numbers(missing),
                              "; start them, or correct the world size"));
  }
  for (int rank = 0; rank < plan.world_size; ++rank) {
    const std::string theirs = store.get_to_str(key(rank));
    if (theirs != std::to_string(plan.world_size)) {
      throw UsageError(concat("init_process_group: rank ", plan.rank, " was given a world size of ",
                              plan.world_size, ", rank ", rank, " one of ", theirs,
                              "; give all ranks the same"));
    }
  }
}

}  // namespace lockstep
