#include "lockstep/ddp/exchange/machine_failure.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/backends/shm/shm_backend.h"
#include "lockstep/comm/internal/comm_error.h"
#include "lockstep/comm/internal/error_text.h"
#include "lockstep/comm/internal/store_wait.h"

namespace lockstep::inline internal {
namespace {

// A failure, with ranks of the whole group.
struct Seen {
  UnnamedCommError error;
  bool by_itself = false;  // This rank saw it; else it may be what follows from a rank's failure.
};

std::string describe_ranks(const std::vector<int>& ranks) {
  return concat(ranks.size() > 1 ? "ranks " : "rank ", join_numbers(ranks));
}

UnnamedCommError lost(std::vector<int> ranks) {
  const std::string reason = ranks.empty()
                                 ? "a peer is gone; look for the rank that failed first"
                                 : concat("a peer is gone: ", describe_ranks(ranks),
                                          " ended or left the group; look at how it ended");
  return {CommFailure::kPeerLost, reason, std::move(ranks)};
}

UnnamedCommError late(std::vector<int> ranks) {
  const std::string reason =
      ranks.empty() ? "a rank is stuck, stopped or did not make this call"
                    : concat("waited for ", describe_ranks(ranks),
                             ", stuck, stopped or not in this call; check the logs there");
  return {CommFailure::kTimeout, reason, std::move(ranks)};
}

UnnamedCommError failed(int rank, const std::string& reason) {
  return {CommFailure::kOther, concat("rank ", rank, " failed: ", reason), {rank}};
}

shm::Engine::Failure failure_of_machine(const ProcessGroup& local) {
  if (!local) return {};
  return dynamic_cast<ShmBackend&>(*local.c10d_backend()).engine().find_failure();
}

bool is_within_machine(const OperationError& error, const MachineGroups& machines) {
  return !machines.partners || error.fields().group != machines.partners.name();
}

// The rank that did not come to the barrier may itself have waited for another machine.
bool may_follow_from_another(const OperationError& error, const MachineGroups& machines) {
  return !is_within_machine(error, machines) ||
         (machines.partners && error.fields().operation == "barrier");
}

// Of the group in which the error occurred, by its ranks.
std::vector<int> ranks_of(const MachineGroups& machines, const std::string& group) {
  if (machines.local && machines.local.name() == group) return machines.ranks[machines.machine];
  LOCKSTEP_ASSERT(machines.partners);
  std::vector<int> ranks;
  for (const auto& of_machine : machines.ranks) ranks.push_back(of_machine[machines.local_index]);
  return ranks;
}

Seen seen(const OperationError& error, const ProcessGroup& group, const MachineGroups& machines) {
  const std::vector<int> all = ranks_of(machines, error.fields().group);
  std::vector<int> ranks;
  for (const int rank : error.fields().ranks) ranks.push_back(all[static_cast<std::size_t>(rank)]);
  std::ranges::sort(ranks);
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) {
    return {late(std::move(ranks)), !may_follow_from_another(error, machines)};
  }
  // A connection to another machine may have broken because a rank of this one is gone.
  const shm::Engine::Failure of_machine = failure_of_machine(machines.local);
  if (of_machine.is_peer_lost && !of_machine.by_abort) {
    std::vector<int> of_own;
    for (const int rank : of_machine.ranks) {
      of_own.push_back(machines.ranks[machines.machine][static_cast<std::size_t>(rank)]);
    }
    return {lost(std::move(of_own)), true};
  }
  // Neither a rank that is late nor one that is gone: a reason of this rank's own.
  if (dynamic_cast<const CommError*>(&error) != nullptr) {
    return {failed(group.rank(), error.what()), is_within_machine(error, machines)};
  }
  if (is_within_machine(error, machines))
    return {lost({}), false};  // Who ended the group knows who is lost.
  // Gloo does not say which; of two it is the other one.
  if (ranks.empty() && all.size() == 2) ranks.push_back(all[all[0] == group.rank() ? 1 : 0]);
  return {lost(std::move(ranks)), false};
}

void end(const ProcessGroup& group) {
  if (!group) return;
  if (const auto backend = group.c10d_backend()) backend->abort();
}

[[noreturn]] void throw_noted(const ProcessGroup& group, const UnnamedCommError& error) {
  const ErrorFields fields{.operation = "sum over shards",
                           .group = group.name(),
                           .own_rank = group.rank(),
                           .timeout = group.timeout(),
                           .ranks = error.ranks()};
  switch (error.failure()) {
    case CommFailure::kTimeout:
      throw TimeoutError(fields, error.what());
    case CommFailure::kPeerLost:
      throw PeerLost(fields, error.what());
    case CommFailure::kOther:
      break;
  }
  throw PeerFailed(fields, error.what());
}

}  // namespace

void rethrow_as_failure_of(const ProcessGroup& group, const MachineGroups& machines) {
  if (!machines.are_new) throw;
  const auto end_all = [&](const Seen& failure) {
    std::optional<UnnamedCommError> first = failure.error;
    if (machines.note) first = machines.note->agree(failure.error, failure.by_itself);
    end(machines.local);
    end(machines.partners);
    const bool knows_more = first && first->ranks().empty() && failure.by_itself;
    if (knows_more) return failure.error;
    if (first) return *first;
    // Without the store nobody knows who was the first.
    const bool is_guess = !failure.by_itself && failure.error.failure() == CommFailure::kPeerLost;
    return is_guess ? lost({}) : failure.error;
  };
  try {
    throw;
  } catch (const OperationError& error) {
    const UnnamedCommError first = end_all(seen(error, group, machines));
    const bool is_own =
        first.failure() == CommFailure::kOther && first.ranks() == std::vector<int>{group.rank()};
    if (is_own) throw;
    throw_noted(group, first);
  } catch (const std::exception& error) {
    end_all({failed(group.rank(), error_text(error)), true});
    throw;
  }
}

}  // namespace lockstep::inline internal
