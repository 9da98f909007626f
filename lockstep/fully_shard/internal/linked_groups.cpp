#include "lockstep/fully_shard/internal/linked_groups.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/backends/shm/shm_backend.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/comm/internal/process_group_state.h"
#include "lockstep/comm/internal/store_wait.h"

namespace lockstep::inline internal {
namespace {

const ProcessGroup::State& state_of(const ProcessGroup& group) {
  return ProcessGroupAccess::state(group, "fully_shard");
}

std::vector<int> named_ranks_of(const ProcessGroup& group) {
  std::vector<int> ranks = state_of(group).first_ranks;
  if (!ranks.empty()) return ranks;
  ranks.resize(static_cast<std::size_t>(group.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// The same on all ranks of the grid, and of no other: the first rank's, along the rows and columns.
std::int64_t agree_on_number(const std::vector<ProcessGroup>& groups) {
  std::random_device random;
  auto number = static_cast<std::int64_t>((std::uint64_t{random()} << 31U) ^ random());
  for (const ProcessGroup& group : groups) number = gather_rows(group, {number}).front()[0];
  return number;
}

c10::intrusive_ptr<c10d::Store> store_below(const ProcessGroup& group) {
  auto store = state_of(group).store;
  if (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(store.get())) {
    return prefixed->getUnderlyingNonPrefixStore();
  }
  return store;
}

std::string describe_ranks(const std::vector<int>& ranks) {
  return concat(ranks.size() > 1 ? "ranks " : "rank ", join_numbers(ranks));
}

UnnamedCommError lost(const std::vector<int>& ranks) {
  if (ranks.empty()) {
    return {CommFailure::kPeerLost, "a peer is gone; look for the rank that failed first"};
  }
  return {CommFailure::kPeerLost,
          concat("a peer is gone: ", describe_ranks(ranks),
                 " ended or left the group; look at how it ended"),
          ranks};
}

}  // namespace

void LinkedGroups::link(const std::vector<ProcessGroup>& groups) {
  const std::int64_t number = agree_on_number(groups);
  if (state_of(groups.front()).while_waiting) return;
  std::shared_ptr<LinkedGroups> linked;
  for (const ProcessGroup& group : groups) {
    if (!linked) linked = std::dynamic_pointer_cast<LinkedGroups>(state_of(group).failure);
  }
  if (linked) {
    linked->add(groups);
  } else {
    linked.reset(new LinkedGroups(
        groups,
        hierarchical::FailureNote(
            c10::make_intrusive<c10d::PrefixStore>(concat("linked groups/", number),
                                                   store_below(groups.front())),
            named_ranks_of(groups.front())[static_cast<std::size_t>(groups.front().rank())])));
  }
  for (const ProcessGroup& group : groups) state_of(group).failure = linked;
}

LinkedGroups::LinkedGroups(const std::vector<ProcessGroup>& groups, hierarchical::FailureNote note)
    : note_(std::move(note)) {
  add(groups);
  const ProcessGroup& first = groups.front();
  name_ = first.name().substr(0, first.name().find('/'));
  rank_ = members_.front().ranks[static_cast<std::size_t>(first.rank())];
}

void LinkedGroups::add(const std::vector<ProcessGroup>& groups) {
  for (const ProcessGroup& group : groups) {
    const bool is_known =
        std::ranges::find(members_, group.name(), &Member::name) != members_.end();
    if (is_known) continue;
    members_.push_back(
        {.name = group.name(), .ranks = named_ranks_of(group), .backend = state_of(group).backend});
  }
}

// Shared memory shows who has ended; connections break for other reasons, too.
std::vector<int> LinkedGroups::lost_on_own_machine() const {
  for (const Member& member : members_) {
    const auto backend = member.backend.lock();
    auto* const shm = backend ? dynamic_cast<ShmBackend*>(&backend->c10d()) : nullptr;
    if (shm == nullptr) continue;
    const auto failure = shm->engine().find_failure();
    if (!failure.is_peer_lost || failure.by_abort) continue;
    std::vector<int> ranks;
    for (const int rank : failure.ranks) {
      ranks.push_back(member.ranks[static_cast<std::size_t>(rank)]);
    }
    std::ranges::sort(ranks);
    return ranks;
  }
  return {};
}

LinkedGroups::Seen LinkedGroups::see(const OperationError& error) const {
  const auto member = std::ranges::find(members_, error.fields().group, &Member::name);
  const std::vector<int> all = member == members_.end() ? std::vector<int>() : member->ranks;
  std::vector<int> ranks;
  for (const int rank : error.fields().ranks) {
    if (static_cast<std::size_t>(rank) < all.size()) {
      ranks.push_back(all[static_cast<std::size_t>(rank)]);
    }
  }
  std::ranges::sort(ranks);
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) {
    return {{CommFailure::kTimeout,
             ranks.empty() ? "a rank is stuck, stopped or did not make this call"
                           : concat("waited for ", describe_ranks(ranks),
                                    ", stuck, stopped or not in this call; check the logs there"),
             ranks}};
  }
  if (std::vector<int> here = lost_on_own_machine(); !here.empty()) {
    return {lost(here), /*by_itself=*/true};
  }
  if (dynamic_cast<const PeerLost*>(&error) == nullptr) {
    return {{CommFailure::kOther, concat("rank ", rank_, " failed: ", error.what()), {rank_}},
            /*by_itself=*/true};
  }
  // Gloo does not say who; of two ranks it is the other one.
  if (ranks.empty() && all.size() == 2) ranks.push_back(all[all[0] == rank_ ? 1 : 0]);
  return {lost(ranks)};
}

void LinkedGroups::end_all() const {
  for (const Member& member : members_) {
    if (const auto backend = member.backend.lock()) backend->c10d().abort();
  }
}

void LinkedGroups::rethrow() {
  try {
    throw;
  } catch (const OperationError& error) {
    const Seen seen = see(error);
    std::optional<UnnamedCommError> first = note_.agree(seen.error, seen.by_itself);
    end_all();
    // Without the store nobody knows who was the first.
    if (!first) {
      const bool is_guess = !seen.by_itself && seen.error.failure() == CommFailure::kPeerLost;
      first = is_guess ? lost({}) : seen.error;
    } else if (first->failure() == CommFailure::kPeerLost && first->ranks().empty() &&
               seen.by_itself) {
      first = seen.error;
    }
    const bool is_own =
        first->failure() == CommFailure::kOther && first->ranks() == std::vector<int>{rank_};
    // This rank's own error says which call each rank waits in.
    const bool is_nameless_timeout = first->failure() == CommFailure::kTimeout &&
                                     first->ranks().empty() &&
                                     seen.error.failure() == CommFailure::kTimeout;
    if (is_own || is_nameless_timeout) throw;
    const ErrorFields fields{.operation = error.fields().operation,
                             .group = name_,
                             .own_rank = rank_,
                             .timeout = error.fields().timeout,
                             .ranks = first->ranks()};
    if (first->failure() == CommFailure::kTimeout) throw TimeoutError(fields, first->what());
    if (first->failure() == CommFailure::kPeerLost) throw PeerLost(fields, first->what());
    throw PeerFailed(fields, first->what());
  }
}

}  // namespace lockstep::inline internal
