#include "lockstep/comm/internal/group_over_store.h"

#include <algorithm>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/comm/internal/backend_choice.h"
#include "lockstep/comm/internal/backend_factory.h"
#include "lockstep/comm/internal/process_group_state.h"
#include "lockstep/comm/internal/watched_store.h"

namespace lockstep::inline internal {
namespace {

void check_place(const GroupPlace& place) {
  if (place.world_size < 1 || place.rank < 0 || place.rank >= place.world_size) {
    throw UsageError(concat("group '", place.name, "': rank ", place.rank, " of ", place.world_size,
                            " ranks; ranks are 0 to world_size - 1"));
  }
  if (place.timeout <= std::chrono::milliseconds(0)) {
    throw UsageError(concat("group '", place.name, "': a timeout of ", place.timeout.count(),
                            " ms is not positive"));
  }
}

int ranks_of_own_domain(const MemoryDomains& domains, int rank) {
  const int own = domains[static_cast<std::size_t>(rank)];
  return static_cast<int>(std::ranges::count(domains, own));
}

// The store may outlive a group: one that its ranks make again under the same name must not meet
// the keys of the first. Every group of so many ranks has each of them once, so all count alike.
c10::intrusive_ptr<c10d::Store> store_of_this_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const GroupPlace& place) {
  const std::string ranks = concat("groups_of/", place.world_size, "/");
  const std::string counter = concat(ranks, "rank/", place.rank);
  const auto number = watched(store, place.while_waiting)->add(counter, 1);
  return c10::make_intrusive<c10d::PrefixStore>(concat(ranks, number), store);
}

}  // namespace

ProcessGroup make_group_over_store(c10::intrusive_ptr<c10d::Store> store, const GroupPlace& place) {
  check_place(place);
  auto state = std::make_shared<ProcessGroup::State>();
  state->name = place.name;
  state->rank = place.rank;
  state->world_size = place.world_size;
  state->timeout = place.timeout;
  state->while_waiting = place.while_waiting;
  state->asked_to_check_calls = place.check_calls;
  state->local_rank = static_cast<int>(env::integer(env::kLocalRank).value_or(place.rank));
  state->backend_name = env::text(env::kBackend).value_or("");
  if (place.world_size > 1) {
    state->store = store_of_this_group(store, place);
    state->domains =
        exchange_memory_domains(*watched(state->store, place.while_waiting), place.rank,
                                place.world_size, Deadline::after(place.timeout));
  } else {
    state->store = std::move(store);
    state->domains = {0};
  }
  state->local_world_size = static_cast<int>(
      env::integer(env::kLocalWorldSize).value_or(ranks_of_own_domain(state->domains, place.rank)));
  if (state->backend_name.empty()) {
    state->chose_backend = true;
    state->backend_name = choose_backend(state->domains);
  }
  state->device = backend_device(state->backend_name, state->local_rank);
  return make_process_group(std::move(state), place.timeout);
}

}  // namespace lockstep::inline internal
