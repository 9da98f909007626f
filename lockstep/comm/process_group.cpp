#include "lockstep/comm/process_group.h"

#include <mutex>
#include <set>
#include <thread>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "diagnose/capture/recent_calls.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/backend_factory.h"
#include "lockstep/comm/internal/launcher_notice.h"
#include "lockstep/comm/internal/process_group_state.h"
#include "lockstep/comm/internal/store_wait.h"
#include "lockstep/comm/internal/tensor_check.h"
#include "lockstep/comm/internal/watched_store.h"
#include "lockstep/comm/internal/work_state.h"

namespace lockstep {

const ProcessGroup::State& ProcessGroup::state(const char* operation) const {
  if (!state_) {
    throw UsageError(concat(operation,
                            ": this ProcessGroup is empty; get one from init_process_group(), and "
                            "test a group from new_group() before use on ranks outside it"));
  }
  return *state_;
}

int ProcessGroup::rank() const {
  return state("rank").rank;
}
int ProcessGroup::world_size() const {
  return state("world_size").world_size;
}
int ProcessGroup::local_rank() const {
  return state("local_rank").local_rank;
}

const std::string& ProcessGroup::local_address() const {
  return state("local_address").local_address;
}
const std::string& ProcessGroup::name() const {
  return state("name").name;
}
const std::string& ProcessGroup::backend_name() const {
  return state("backend_name").backend_name;
}
c10::Device ProcessGroup::device() const {
  return state("device").device;
}
std::chrono::milliseconds ProcessGroup::timeout() const {
  return state("timeout").timeout;
}
c10::intrusive_ptr<c10d::Backend> ProcessGroup::c10d_backend() const {
  const State& group = state("c10d_backend");
  if (!group.backend) return {};
  return c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(&group.backend->c10d());
}
c10::intrusive_ptr<c10d::Store> ProcessGroup::c10d_store() const {
  const State& group = state("c10d_store");
  if (!group.while_waiting || !group.store) return group.store;
  const auto check = [ask = group.while_waiting, thread = group.made_by] {
    if (std::this_thread::get_id() == thread) ask();
  };
  return watched(group.store, check);
}

at::Tensor ProcessGroup::allocate_tensor(std::int64_t numel, at::ScalarType dtype) const {
  const State& group = state("allocate_tensor");
  const auto options = at::TensorOptions(dtype).device(group.device);
  if (group.backend) {
    c10d::Backend& backend = group.backend->c10d();
    if (backend.supportsTensorAlloc(group.device.index())) {
      return backend.allocateTensor(numel, options);
    }
  }
  return at::empty({numel}, options);
}

bool ProcessGroup::shares_memory() const {
  const State& group = state("shares_memory");
  return group.backend && group.backend->shared_memory() != nullptr;
}

namespace {

std::shared_ptr<NativeBackend> connect(const ProcessGroup::State& state,
                                       std::chrono::milliseconds connect_timeout) {
  const QuietC10d quiet;
  failpoint("connect.begin");
  try {
    return make_backend(state.backend_name, {.store = state.store,
                                             .rank = state.rank,
                                             .world_size = state.world_size,
                                             .local_rank = state.local_rank,
                                             .local_world_size = state.local_world_size,
                                             .timeout = state.timeout,
                                             .connect_timeout = connect_timeout,
                                             .local_address = state.local_address,
                                             .group_name = state.name,
                                             .domains = state.domains,
                                             .while_waiting = state.while_waiting});
  } catch (...) {
    rethrow_named({"connecting the ranks", state.name, state.rank, std::nullopt, connect_timeout});
  }
}

// A backend that we chose ourselves may turn out not to work here; one that the user named is an
// error then. All ranks find the same.
std::shared_ptr<NativeBackend> connect_or_fall_back(ProcessGroup::State& state,
                                                    std::chrono::milliseconds connect_timeout) {
  try {
    return connect(state, connect_timeout);
  } catch (const BackendUnavailable& error) {
    if (!state.chose_backend) throw;
    if (state.rank == 0) log(LogLevel::kWarning, concat(error.what(), "; using gloo instead"));
    state.chose_backend = false;
    state.backend_name = "gloo";
    return connect(state, connect_timeout);
  }
}

// On a device the exchange would wait for what was queued before: only where it is asked for.
CallCheck call_check(const ProcessGroup::State& state) {
  if (state.backend->compares_calls()) return CallCheck::kBackend;
  return state.asked_to_check_calls.value_or(state.device.is_cpu()) ? CallCheck::kExchange
                                                                    : CallCheck::kNone;
}

// For the rest of the process: threads of these backends wait for peers that do not answer, and
// their destructors would wait for the threads.
void abandon(std::shared_ptr<NativeBackend> backend) {
  static std::mutex mutex;
  static auto* abandoned = new std::vector<std::shared_ptr<NativeBackend>>();  // never destroyed
  const std::lock_guard lock(mutex);
  abandoned->push_back(std::move(backend));
}

}  // namespace

ProcessGroup::State::~State() {
  if (!backend || !backend->is_busy()) return;
  backend->c10d().abort();
  abandon(std::move(backend));
}

inline namespace internal {

ProcessGroup make_process_group(std::shared_ptr<ProcessGroup::State> state,
                                std::chrono::milliseconds connect_timeout) {
  if (state->world_size > 1) {
    state->backend = connect_or_fall_back(*state, connect_timeout);
    state->call_check = call_check(*state);
  }
  return ProcessGroup(std::move(state));
}

}  // namespace internal

ProcessGroup ProcessGroup::new_group(const std::vector<int>& ranks,
                                     const NewGroupOptions& options) const {
  const State& parent = state("new_group");
  const CallSite call{"new_group", parent};
  if (ranks.empty()) throw UsageError("new_group: no ranks given; name at least one");
  if (std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size()) {
    throw UsageError("new_group: a rank is named twice; name each once");
  }
  int rank = -1;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    check_rank(call, "a rank of the new group", ranks[i]);
    if (ranks[i] == parent.rank) rank = static_cast<int>(i);
  }
  // Counted on every rank, members or not, so that all give the group the same name.
  const auto index = parent.groups_made++;
  if (rank < 0) return {};

  auto child = std::make_shared<State>();
  child->rank = rank;
  child->world_size = static_cast<int>(ranks.size());
  child->name = concat(parent.name, "/", index);
  if (!parent.domains.empty()) child->domains = domains_of(parent.domains, ranks);
  for (const int each : ranks) {
    const auto at = static_cast<std::size_t>(each);
    child->first_ranks.push_back(parent.first_ranks.empty() ? each : parent.first_ranks[at]);
  }
  child->chose_backend = options.backend.empty() && parent.chose_backend;
  if (child->chose_backend) {
    child->backend_name = choose_backend(child->domains);
  } else {
    child->backend_name = options.backend.empty() ? parent.backend_name : options.backend;
  }
  child->local_rank = parent.local_rank;
  child->local_world_size = parent.local_world_size;
  child->local_address = parent.local_address;
  child->while_waiting = parent.while_waiting;
  child->asked_to_check_calls =
      options.check_calls ? options.check_calls : parent.asked_to_check_calls;
  child->timeout = options.timeout.value_or(parent.timeout);
  check_timeout(call, child->timeout);
  child->device = backend_device(child->backend_name, child->local_rank);
  child->store = c10::make_intrusive<c10d::PrefixStore>(child->name, parent.store);
  failpoint("group.begin");
  const auto connect_timeout = child->timeout;
  return make_process_group(std::move(child), connect_timeout);
}

void ProcessGroup::monitored_barrier(std::optional<std::chrono::milliseconds> timeout) const {
  const State& group = state("monitored_barrier");
  const auto limit = timeout.value_or(group.timeout);
  check_timeout({"monitored_barrier", group}, limit);
  if (group.world_size == 1) return;
  const auto round = group.monitored_barriers++;
  const auto key = [](std::uint64_t of_round, int rank) {
    return concat("monitored_barrier/", of_round, "/", rank);
  };
  const CollectiveName name{"monitored_barrier", group.name, group.rank, round, limit};
  const std::uint64_t ticket = recent_calls().start(name.operation, name.group, name.sequence);
  recent_calls().wait(ticket);
  std::vector<std::string> keys;
  for (int rank = 0; rank < group.world_size; ++rank) keys.push_back(key(round, rank));
  try {
    const auto store = watched(group.store, group.while_waiting);
    store->set(keys[group.rank], std::string("here"));
    const auto missing = wait_for_keys(*store, keys, Deadline::after(limit));
    if (!missing.empty()) {
      notify_launcher_of_late_rank(name);
      throw TimeoutError(fields_of(name, missing),
                         concat("rank", missing.size() > 1 ? "s " : " ", join_numbers(missing),
                                " did not join within ", limit.count(), " ms; check their logs"));
    }
    // Whoever is here has left the round before: its keys are of no more use.
    if (round > 0) store->deleteKey(key(round - 1, group.rank));
    recent_calls().end(ticket);
  } catch (const c10::Error&) {
    throw PeerLost(fields_of(name),
                   "lost the job's store, which rank 0 of the job serves; "
                   "look at how that rank ended");
  }
}

}  // namespace lockstep
