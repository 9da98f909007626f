#include "lockstep/comm/internal/init_plan.h"

#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/job/internal/launched_place.h"
#include "lockstep/job/internal/launcher_address.h"

namespace lockstep::inline internal {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDefaultTimeout = std::chrono::minutes(10);
constexpr milliseconds kDefaultInitTimeout = std::chrono::minutes(5);

[[noreturn]] void refuse(const std::string& reason) {
  throw UsageError("init_process_group: " + reason);
}

void set_address(InitPlan& plan, const std::string& host, int port, std::string_view from) {
  if (host.empty()) refuse(concat(from, " names no host"));
  if (port < 1 || port > 65535) refuse(concat("port ", port, " in ", from, " is not 1 to 65535"));
  plan.store = InitPlan::Store::kTcp;
  plan.host = host;
  plan.port = static_cast<std::uint16_t>(port);
}

// "host:port", the host in brackets when it is an IPv6 address.
void parse_tcp(InitPlan& plan, const std::string& init_method, std::string_view address) {
  const auto colon = address.rfind(':');
  int port = 0;
  if (colon != std::string_view::npos) {
    port = parse_number<int>(address.substr(colon + 1)).value_or(0);
  }
  if (port == 0) refuse(concat("'", init_method, "' has no port; write tcp://host:port"));
  std::string_view host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  set_address(plan, std::string(host), port, init_method);
}

template <class T>
T require(const std::optional<T>& value, const char* option, const std::string& init_method) {
  if (!value) refuse(concat(init_method, " needs the option ", option));
  return *value;
}

// Takes the place that mpirun or srun gave out, and where its ranks meet. Returns whether there was
// one.
bool plan_launched(InitPlan& plan, MpiLibrary mpi) {
  const auto place = launched_place();
  if (!place) return false;
  plan.rank = place->rank;
  plan.world_size = place->world_size;
  plan.local_rank = place->local_rank;
  plan.local_world_size = place->local_world_size;
  plan.one_machine = place->one_machine;
  if (plan.world_size == 1) return true;
  const LauncherAddress address = launcher_address(*place, mpi);
  plan.store = address.store;
  if (address.store == InitPlan::Store::kTcp) {
    plan.address_source = address.source;
    set_address(plan, address.host, address.port,
                address.source.empty() ? "MASTER_ADDR and MASTER_PORT" : address.source);
  }
  plan.serves_store = plan.rank == 0;
  return true;
}

// Returns whether mpirun or srun gave this rank its place.
bool plan_env(InitPlan& plan, const InitOptions& options, MpiLibrary mpi) {
  const auto rank = options.rank ? options.rank : env::integer(env::kRank);
  const auto world_size = options.world_size ? options.world_size : env::integer(env::kWorldSize);
  if (!rank && !world_size) {
    return plan_launched(plan, mpi);  // No launcher: a job of one process.
  }
  if (!rank || !world_size) {
    refuse(concat(rank ? "RANK is set but WORLD_SIZE is not" : "WORLD_SIZE is set but RANK is not",
                  "; start the program by `lockstep run`, or set both"));
  }
  plan.rank = *rank;
  plan.world_size = *world_size;
  if (plan.world_size == 1) return false;
  const auto host = env::text(env::kMasterAddr);
  const auto port = env::integer(env::kMasterPort);
  if (!host || !port) {
    refuse(concat("env:// with WORLD_SIZE=", plan.world_size, " needs ",
                  host ? "MASTER_PORT" : "MASTER_ADDR",
                  "; start the program by `lockstep run`, or set it"));
  }
  set_address(plan, *host, *port, "MASTER_ADDR and MASTER_PORT");
  plan.serves_store = plan.rank == 0 && env::text(env::kUseAgentStore) != "True";
  if (plan.serves_store) plan.listen_fd = env::integer(env::kStoreListenFd);
  return false;
}

}  // namespace

InitPlan plan_init(const InitOptions& options, bool has_store, MpiLibrary mpi) {
  if (env::boolean(env::kStandby).value_or(false)) {
    refuse(
        "this process is a standby worker of `lockstep run --standby` and has no rank yet; call "
        "ResilientTraining::run() first, which waits for one, or run without --standby");
  }
  InitPlan plan;
  bool has_place = false;
  const std::string& method = options.init_method;
  if (has_store) {
    plan.rank = require(options.rank, "rank", "a store");
    plan.world_size = require(options.world_size, "world_size", "a store");
    plan.store = InitPlan::Store::kGiven;
  } else if (method == "env://") {
    has_place = plan_env(plan, options, mpi);
  } else if (method == "torch://") {
    has_place = plan_env(plan, options, mpi);
    if (has_place)
      refuse("torch:// needs RANK and WORLD_SIZE; start the program by `lockstep run`");
    plan.meets_torch = true;
  } else if (method.starts_with("tcp://")) {
    plan.rank = require(options.rank, "rank", method);
    plan.world_size = require(options.world_size, "world_size", method);
    parse_tcp(plan, method, std::string_view(method).substr(6));
    plan.serves_store = plan.rank == 0;
  } else if (method.starts_with("file:///")) {
    plan.rank = require(options.rank, "rank", method);
    plan.world_size = require(options.world_size, "world_size", method);
    plan.store = InitPlan::Store::kFile;
    plan.path = method.substr(7);
  } else {
    refuse(concat("init_method '", method,
                  "' is not supported; use env://, torch://, tcp://host:port or "
                  "file:///absolute/path"));
  }
  if (plan.world_size < 1) refuse(concat("world size ", plan.world_size, " is not positive"));
  if (plan.rank < 0 || plan.rank >= plan.world_size) {
    refuse(concat("rank ", plan.rank, " does not exist in a world of ", plan.world_size, " (0 to ",
                  plan.world_size - 1, ")"));
  }

  plan.while_waiting = options.while_waiting;
  plan.generation = env::integer(env::kRestartCount).value_or(0);
  if (!has_place) {
    // Who gave the rank may not have said which of the machine's it is; srun and mpirun do.
    const auto place = launched_place();
    plan.local_rank = env::integer(env::kLocalRank).value_or(place ? place->local_rank : plan.rank);
    plan.local_world_size = env::integer(env::kLocalWorldSize)
                                .value_or(place ? place->local_world_size : plan.world_size);
  }
  plan.backend = !options.backend.empty() ? options.backend : env::text(env::kBackend).value_or("");
  plan.check_calls = options.check_calls ? options.check_calls : env::boolean(env::kCheckCalls);
  plan.timeout = collective_timeout(options);
  plan.init_timeout = options.init_timeout
                          ? *options.init_timeout
                          : env::seconds(env::kInitTimeout).value_or(kDefaultInitTimeout);
  if (plan.timeout <= milliseconds(0) || plan.init_timeout <= milliseconds(0)) {
    refuse("timeout and init_timeout must be positive");
  }
  return plan;
}

milliseconds collective_timeout(const InitOptions& options) {
  return options.timeout ? *options.timeout : env::seconds(env::kTimeout).value_or(kDefaultTimeout);
}

}  // namespace lockstep::inline internal
