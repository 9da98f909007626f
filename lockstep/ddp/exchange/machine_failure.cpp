#include "lockstep/ddp/exchange/machine_failure.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/error.h"
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

shm::Engine::Failure failure_of_machine(const ProcessGroup& local) {
  if (!local) return {};
  return dynamic_cast<ShmBackend&>(*local.c10d_backend()).engine().find_failure();
}

// Of the group in which the error occurred, by its ranks.
std::vector<int> ranks_of(const MachineGroups& machines, const std::string& group) {
  if (machines.local && machines.local.name() == group) return machines.ranks[machines.machine];
  std::vector<int> ranks;
  for (const auto& of_machine : machines.ranks) ranks.push_back(of_machine[machines.local_index]);
  return ranks;
}

Seen seen(const OperationError& error, const ProcessGroup& group, const MachineGroups& machines) {
  const std::vector<int> all = ranks_of(machines, error.fields().group);
  std::vector<int> ranks;
  for (const int rank : error.fields().ranks) ranks.push_back(all[static_cast<std::size_t>(rank)]);
  std::ranges::sort(ranks);
  const bool is_within_machine =
      !machines.partners || error.fields().group != machines.partners.name();
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) {
    return {late(std::move(ranks)), is_within_machine};
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
  if (is_within_machine) return {lost({}), false};  // Who ended the group knows who is lost.
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
    if (first) return *first;
    // Without the store nobody knows who was the first.
    const bool is_guess = !failure.by_itself && failure.error.failure() == CommFailure::kPeerLost;
    return is_guess ? lost({}) : failure.error;
  };
  try {
    throw;
  } catch (const OperationError& error) {
    throw_noted(group, end_all(seen(error, group, machines)));
  } catch (const std::exception& error) {
    const std::string reason = concat("rank ", group.rank(), " failed: ", error_text(error));
    end_all({{CommFailure::kOther, reason, {group.rank()}}, true});
    throw;
  }
}

}  // namespace lockstep::inline internal
