#include "lockstep/comm/internal/rendezvous.h"

#include <algorithm>
#include <condition_variable>
#include <optional>
#include <set>
#include <thread>

#include <fcntl.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/comm/internal/backend_factory.h"
#include "lockstep/comm/internal/comm_error.h"
#include "lockstep/comm/internal/launcher_notice.h"
#include "lockstep/comm/internal/store_wait.h"
#include "lockstep/comm/internal/work_state.h"
#include "lockstep/job/internal/pmi_exchange.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/socket/tcp_socket.h"

namespace lockstep::inline internal {
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
  return bind_tcp_for_peers(plan.host, plan.port);
}

// What to do where host and port were worked out, not given.
std::string advice(const InitPlan& plan) {
  if (plan.address_source.empty()) return "";
  return concat("; host and port are derived from ", plan.address_source,
                "; set MASTER_ADDR and MASTER_PORT on all ranks to override them");
}

ErrorFields fields_of(const InitPlan& plan, std::vector<int> ranks = {}) {
  return {.operation = "init_process_group",
          .own_rank = plan.rank,
          .timeout = plan.init_timeout,
          .ranks = std::move(ranks)};
}

// Calls `open`, whose errors do not know what the address is for.
template <class Open>
auto at_address(const InitPlan& plan, Open open) {
  const std::string who = concat("init_process_group on rank ", plan.rank, ": ");
  try {
    return open();
  } catch (const TimeoutError& error) {
    throw TimeoutError(concat(who, error.what(), advice(plan)), fields_of(plan));
  } catch (const UsageError& error) {
    throw UsageError(concat(who, error.what(), advice(plan)));
  } catch (const SystemError& error) {
    if (plan.address_source.empty()) throw;
    throw SystemError(concat(who, "bind to ", plan.host, " port ", plan.port), error.errno_value(),
                      advice(plan).substr(2));
  }
}

// Ends the connections to a server that accepts them and says nothing, as one does that is stopped:
// LibTorch would wait for its first word for ever.
class CutAfter {
 public:
  CutAfter(std::uint16_t port, std::chrono::milliseconds patience)
      : port_(port), before_(connections_to(port)), thread_([this, patience] { run(patience); }) {}
  ~CutAfter() {
    {
      const MutexLock lock(mutex_);
      is_done_ = true;
    }
    done_.notify_all();
    thread_.join();
  }
  CutAfter(const CutAfter&) = delete;
  CutAfter& operator=(const CutAfter&) = delete;

 private:
  void run(std::chrono::milliseconds patience) {
    constexpr std::chrono::milliseconds kNextTry{50};  // LibTorch may have connected once more.
    MutexLock lock(mutex_);
    while (!done_.wait_for(lock.native(), patience,
                           [this]() LOCKSTEP_REQUIRES(mutex_) { return is_done_; })) {
      for (const int fd : connections_to(port_)) {
        if (!before_.contains(fd)) ::shutdown(fd, SHUT_RDWR);
      }
      patience = kNextTry;
    }
  }

  const std::uint16_t port_;
  const std::set<int> before_;
  Mutex mutex_;
  std::condition_variable done_;
  bool is_done_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // after what it uses
};

// LibTorch asks nobody while it tries to connect. Who served the store may have ended just after it
// was seen to listen, and another generation may begin.
constexpr std::chrono::milliseconds kOneTry{500};

c10::intrusive_ptr<c10d::Store> open_tcp_store(const InitPlan& plan, const Deadline& deadline) {
  c10d::TCPStoreOptions options;
  options.port = plan.port;
  // join_world waits, and says for whom. PyTorch's server of the store waits for all clients.
  options.waitWorkers = plan.meets_torch && !plan.serves_store;
  if (options.waitWorkers) options.numWorkers = static_cast<std::size_t>(plan.world_size);
  if (plan.serves_store) {
    options.isServer = true;
    options.masterListenFd = at_address(plan, [&] { return serving_socket(plan); }).release();
  }
  for (;;) {
    if (!plan.serves_store) {
      at_address(plan,
                 [&] { wait_for_listener(plan.host, plan.port, deadline, plan.while_waiting); });
    }
    const auto left = std::max(deadline.remaining(), std::chrono::milliseconds(1));
    const bool is_last_try = plan.serves_store || !plan.while_waiting || left <= kOneTry;
    options.timeout = is_last_try ? left : kOneTry;
    try {
      std::optional<CutAfter> cut;
      if (!plan.serves_store) cut.emplace(plan.port, options.timeout);
      auto store = c10::make_intrusive<c10d::TCPStore>(plan.host, options);
      cut.reset();
      store->setTimeout(left);
      // Else a rank 0 that is stopped would never be noticed: LibTorch waits for answers for ever.
      if (!plan.serves_store) limit_reads_from(plan.port, left);
      return store;
    } catch (const c10::Error& error) {
      if (!is_last_try) continue;
      throw TimeoutError(fields_of(plan, {0}),
                         concat("no store at ", plan.host, " port ", plan.port,
                                "; check MASTER_ADDR, MASTER_PORT and that rank 0 runs (",
                                error.what_without_backtrace(), ")"));
    }
  }
}

struct Meeting {
  UniqueFd socket;      // of rank 0
  std::string address;  // "<port>/<host>"
};

Meeting meet_once(const InitPlan& plan, const Deadline& deadline) {
  Meeting meeting;
  if (plan.rank == 0) {
    const std::string host = plan.one_machine ? "127.0.0.1" : host_name();
    meeting.socket = plan.one_machine ? bind_tcp(host, 0) : bind_tcp_for_peers(host, 0);
    meeting.address = concat(bound_port(meeting.socket.get()), "/", host);
  }
  try {
    meeting.address =
        plan.store == InitPlan::Store::kMpi
            ? broadcast_by_mpi(meeting.address, plan.world_size, deadline)
            : broadcast_by_pmi("init_process_group", env::integer(env::kPmiConnection).value_or(-1),
                               plan.rank, meeting.address, deadline);
  } catch (const std::runtime_error& error) {
    if (dynamic_cast<const Error*>(&error) != nullptr) throw;
    throw CommError(fields_of(plan),
                    concat("no address of the store from rank 0 by MPI (", error.what(), ")"));
  }
  return meeting;
}

void take_address(InitPlan& plan, const Meeting& meeting) {
  const auto slash = std::min(meeting.address.find('/'), meeting.address.size());
  const auto port = parse_number<std::uint16_t>(meeting.address.substr(0, slash));
  if (!port || slash == meeting.address.size()) {
    throw CommError(
        fields_of(plan),
        concat("mpirun passed '", meeting.address,
               "', which is not an address of rank 0; set MASTER_ADDR and MASTER_PORT"));
  }
  plan.port = *port;
  plan.host = meeting.address.substr(slash + 1);
  plan.address_source = "the address that rank 0 published through mpirun";
  plan.store = InitPlan::Store::kTcp;
  if (meeting.socket.valid()) plan.listen_fd = meeting.socket.get();
}

std::string joined_key(int rank) {
  return concat("joined/", rank);
}

void claim_rank(c10d::Store& store, const InitPlan& plan) {
  if (store.add(concat("claims/", plan.rank), 1) != 1) {
    throw UsageError(
        concat("init_process_group: rank ", plan.rank,
               " has already joined: two processes have this rank, or the store belongs to "
               "an earlier job; give each process its own rank and each job a new port or file"));
  }
  store.set(joined_key(plan.rank), std::to_string(plan.world_size));
}

// The rank that serves the store gives up a little later than the others, whose report needs it.
constexpr std::chrono::seconds kServerGrace{2};

void wait_for_all(c10d::Store& store, const InitPlan& plan, Deadline deadline) {
  if (plan.serves_store) deadline = Deadline(deadline.instant() + kServerGrace);
  std::vector<std::string> keys;
  for (int rank = 0; rank < plan.world_size; ++rank) keys.push_back(joined_key(rank));
  const auto report = [&](const std::vector<int>& missing) {
    log(LogLevel::kWarning,
        concat("init_process_group: waiting for rank", missing.size() > 1 ? "s " : " ",
               join_numbers(missing), " of ", plan.world_size));
  };
  const auto missing = wait_for_keys(store, keys, deadline, report);
  if (missing.empty()) return;
  notify_launcher_of_late_rank(
      {"init_process_group", "default", plan.rank, std::nullopt, plan.init_timeout});
  throw TimeoutError(
      fields_of(plan, missing),
      concat(plan.world_size - static_cast<int>(missing.size()), " of ", plan.world_size,
             " ranks joined within ", plan.init_timeout.count(),
             " ms; missing: ", join_numbers(missing), "; start them, or correct the world size"));
}

void check_world_sizes(c10d::Store& store, const InitPlan& plan) {
  const std::string ours = std::to_string(plan.world_size);
  for (int rank = 0; rank < plan.world_size; ++rank) {
    const std::string theirs = store.get_to_str(joined_key(rank));
    if (theirs == ours) continue;
    throw UsageError(concat("init_process_group: rank ", plan.rank, " was given a world size of ",
                            ours, ", rank ", rank, " one of ", theirs,
                            "; give all ranks the same"));
  }
}

}  // namespace

UniqueFd meet_by_launcher(InitPlan& plan, const Deadline& deadline) {
  if (plan.store == InitPlan::Store::kMpi) {
    Meeting meeting = meet_once(plan, deadline);
    take_address(plan, meeting);
    return std::move(meeting.socket);
  }
  // MPICH's mpirun passes on one text a process: its later groups meet where the first did.
  static Meeting first;
  if (first.address.empty()) first = meet_once(plan, deadline);
  take_address(plan, first);
  return {};
}

c10::intrusive_ptr<c10d::Store> open_store(const InitPlan& plan, const Deadline& deadline) {
  if (plan.store == InitPlan::Store::kFile) {
    auto store = c10::make_intrusive<c10d::FileStore>(plan.path, plan.world_size);
    store->setTimeout(deadline.remaining());
    return store;
  }
  const QuietC10d quiet;
  return open_tcp_store(plan, deadline);
}

void join_world(c10d::Store& store, const InitPlan& plan, const Deadline& deadline,
                const std::function<void()>& tell) {
  const QuietC10d quiet;
  try {
    tell();
    claim_rank(store, plan);
    wait_for_all(store, plan, deadline);
    check_world_sizes(store, plan);
  } catch (const c10::Error& error) {
    if (failure_of(error.what_without_backtrace()) == CommFailure::kTimeout) {
      throw TimeoutError(fields_of(plan, {0}),
                         "no answer from the job's store, which rank 0 serves; it is stuck or "
                         "stopped");
    }
    throw PeerLost(fields_of(plan, {0}),
                   "lost the job's store, which rank 0 serves; look at how rank 0 ended");
  }
}

}  // namespace lockstep::inline internal
