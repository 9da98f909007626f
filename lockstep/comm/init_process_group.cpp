#include "lockstep/comm/init_process_group.h"

#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "diagnose/capture/crash_handler.h"
#include "diagnose/capture/recent_calls.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/internal/backend_choice.h"
#include "lockstep/comm/internal/backend_factory.h"
#include "lockstep/comm/internal/group_over_store.h"
#include "lockstep/comm/internal/init_plan.h"
#include "lockstep/comm/internal/launcher_notice.h"
#include "lockstep/comm/internal/process_group_state.h"
#include "lockstep/comm/internal/rendezvous.h"
#include "lockstep/comm/internal/stand_in_group.h"
#include "lockstep/comm/internal/watched_store.h"
#include "lockstep/os/memory/freed_memory.h"
#include "lockstep/os/process/signals.h"
#include "lockstep/os/socket/tcp_socket.h"

namespace lockstep {
namespace {

// The default group. A function-local static: no initialisation order to think about.
struct Default {
  Mutex mutex;
  ProcessGroup group LOCKSTEP_GUARDED_BY(mutex);
  // Part of the keys, so that a second job of this process on the same store finds nothing of the
  // first; each generation has a store of its own.
  int groups_made LOCKSTEP_GUARDED_BY(mutex) = 0;
  int generation LOCKSTEP_GUARDED_BY(mutex) = 0;
};

Default& the_default() {
  static Default instance;
  return instance;
}

// Returns when all ranks are there. In a store that rank 0 serves, a rank that comes back after a
// group of before may still find the store of that one, which rank 0 is about to close: then it
// looks again.
void meet(ProcessGroup::State& state, const InitPlan& plan, c10::intrusive_ptr<c10d::Store> store,
          int job, bool shares_memory, const Deadline& deadline) {
  const bool may_find_old_store =
      job > 0 && !store && plan.store != InitPlan::Store::kFile && !plan.serves_store;
  const std::string prefix = concat("lockstep/", plan.generation, "/", job);
  for (;;) {
    try {
      auto opened = store ? store : open_store(plan, deadline);
      if (plan.while_waiting) opened = c10::make_intrusive<WatchedStore>(std::move(opened));
      failpoint("meet.store");
      state.store = c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(opened));
      const auto asked = watched(state.store, plan.while_waiting);
      join_world(*asked, plan, deadline, [&] {
        if (shares_memory) publish_memory_domain(*asked, plan.rank);
      });
      if (shares_memory) state.domains = read_memory_domains(*asked, plan.world_size);
      return;
    } catch (const PeerLost&) {
      if (!may_find_old_store || deadline.passed()) throw;
    }
  }
}

// Under the keys that torch.distributed gives the backend of its default group for CPU tensors.
ProcessGroup join_torch(const InitPlan& plan) {
  c10::intrusive_ptr<c10d::Store> store;
  if (plan.world_size > 1) store = open_store(plan, Deadline::after(plan.init_timeout));
  for (const char* const prefix : {"default_pg", "0/", "cpu/"}) {
    if (store) store = c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
  }
  // As the Python side: only where the environment of all ranks says so.
  return make_group_over_store(std::move(store), {.rank = plan.rank,
                                                  .world_size = plan.world_size,
                                                  .name = "default",
                                                  .timeout = plan.timeout,
                                                  .check_calls = plan.check_calls.value_or(false),
                                                  .while_waiting = plan.while_waiting});
}

ProcessGroup join(InitPlan plan, c10::intrusive_ptr<c10d::Store> store, int job) {
  if (plan.meets_torch) return join_torch(plan);
  const auto deadline = Deadline::after(plan.init_timeout);
  auto state = std::make_shared<ProcessGroup::State>();
  state->name = "default";
  state->rank = plan.rank;
  state->world_size = plan.world_size;
  state->local_rank = plan.local_rank;
  state->timeout = plan.timeout;
  state->while_waiting = plan.while_waiting;
  state->asked_to_check_calls = plan.check_calls;
  state->local_world_size = plan.local_world_size;
  state->backend_name = plan.backend;
  if (plan.backend.empty() && has_cuda_device_each(plan.local_world_size))
    state->backend_name = "nccl";
  const bool shares_memory = state->backend_name.empty();
  // Before anybody is met: a name that is none is an error of this rank alone.
  if (!shares_memory) state->device = backend_device(state->backend_name, state->local_rank);
  failpoint("meet.begin");
  if (plan.world_size > 1) {
    UniqueFd store_socket;
    if (plan.store == InitPlan::Store::kMpi || plan.store == InitPlan::Store::kPmi) {
      store_socket = meet_by_launcher(plan, deadline);
    }
    meet(*state, plan, std::move(store), job, shares_memory, deadline);
    if (plan.store == InitPlan::Store::kTcp) {
      state->local_address = local_address_towards(plan.host);
    }
  }
  failpoint("meet.joined");
  if (shares_memory) {
    state->chose_backend = true;
    state->backend_name = choose_backend(state->domains);
    state->device = backend_device(state->backend_name, state->local_rank);
  }
  ProcessGroup group = make_process_group(std::move(state), plan.init_timeout);
  failpoint("meet.connected");
  return group;
}

ProcessGroup init(const InitOptions& options, const c10::intrusive_ptr<c10d::Store>& store) {
  Default& current = the_default();
  const MutexLock lock(current.mutex);
  if (current.group) {
    throw UsageError(
        "init_process_group: there is a default group already; call destroy_process_group() first, "
        "or use new_group() for more groups");
  }
  report_crashes();
  show_recent_calls_to_launcher();
  const InitPlan plan = plan_init(options, store.defined(), mpi_library());
  keep_freed_memory();
  // Gloo and the store's clients write to connections that peers may have closed.
  if (plan.world_size > 1) ignore_broken_pipes();
  if (plan.generation != std::exchange(current.generation, plan.generation))
    current.groups_made = 0;
  const std::uint64_t ticket = recent_calls().start("init_process_group", "default", std::nullopt);
  recent_calls().wait(ticket);
  current.group = join(plan, store, current.groups_made++);
  recent_calls().end(ticket);
  return current.group;
}

}  // namespace

ProcessGroup init_process_group(const InitOptions& options) {
  return init(options, {});
}

ProcessGroup init_process_group(const c10::intrusive_ptr<c10d::Store>& store,
                                const InitOptions& options) {
  if (!store.defined()) throw UsageError("init_process_group: the store is null");
  return init(options, store);
}

ProcessGroup default_process_group() {
  Default& current = the_default();
  const MutexLock lock(current.mutex);
  if (!current.group) {
    throw UsageError("there is no process group yet; call init_process_group() first");
  }
  return current.group;
}

bool is_initialized() {
  Default& current = the_default();
  const MutexLock lock(current.mutex);
  return static_cast<bool>(current.group);
}

ProcessGroup group_or_default(ProcessGroup group) {
  if (group) return group;
  Default& current = the_default();
  const MutexLock lock(current.mutex);
  return current.group;
}

void destroy_process_group() {
  Default& current = the_default();
  const MutexLock lock(current.mutex);
  current.group = {};
}

}  // namespace lockstep

namespace lockstep::inline internal {

ProcessGroup make_stand_in(const ProcessGroup& like) {
  auto state = std::make_shared<ProcessGroup::State>();
  state->name = "default";
  if (like) {
    const auto& original = ProcessGroupAccess::state(like, "make_stand_in");
    state->local_rank = original.local_rank;
    state->timeout = original.timeout;
    state->device = original.device;
  } else {
    state->timeout = collective_timeout({});
  }
  return ProcessGroup(std::move(state));
}

void replace_default_group(ProcessGroup group) {
  Default& current = the_default();
  const MutexLock lock(current.mutex);
  current.group = std::move(group);
}

}  // namespace lockstep::inline internal
