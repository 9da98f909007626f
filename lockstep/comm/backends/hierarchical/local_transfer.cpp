#include "lockstep/comm/backends/hierarchical/local_transfer.h"

#include <algorithm>
#include <limits>

#include "lockstep/comm/backends/shm/layout.h"
#include "lockstep/comm/backends/shm/transfer.h"

namespace lockstep::hierarchical {
namespace {

std::uint64_t longest_bytes(const LocalShares& shares) {
  std::uint64_t longest = 0;
  for (const shm::Piece& share : shares.shares) longest = std::max(longest, share.bytes);
  return longest;
}

}  // namespace

LocalShares local_shares(const Machines& machines, const shm::Piece& whole) {
  LocalShares result{.whole = whole, .shares = {}, .local_index = machines.local_index};
  for (int index = 0; index < machines.shares; ++index) {
    const shm::Range range = shm::share(whole.bytes, machines.shares, index);
    result.shares.push_back({whole.data + range.begin, range.bytes, whole.element});
  }
  return result;
}

std::unique_ptr<shm::Operation> make_reduce_scatter(const LocalShares& shares, ReduceOp op) {
  shm::TransferPlan plan{.call = {.kind = shm::CallKind::kAllReduce,
                                  .element = shares.whole.element,
                                  .op = op,
                                  .elements = shares.whole.elements()},
                         .parts = static_cast<int>(shares.shares.size()),
                         .longest_bytes = longest_bytes(shares)};
  for (int index = 0; index < plan.parts; ++index) {
    const shm::Piece& share = shares.shares[static_cast<std::size_t>(index)];
    if (index != shares.local_index) {
      plan.outgoing.push_back({.data = share.data, .bytes = share.bytes, .part = index});
      continue;
    }
    plan.reduced = {
        {.reduction = {.element = share.element, .op = op == ReduceOp::kAvg ? ReduceOp::kSum : op},
         .own = share.data,
         .data = share.data,
         .bytes = share.bytes,
         .part = index}};
  }
  return shm::make_transfer(std::move(plan));
}

std::unique_ptr<shm::Operation> make_broadcast(const LocalShares& shares, int source) {
  const shm::Piece& whole = shares.whole;
  shm::TransferPlan plan{.call = {.kind = shm::CallKind::kBroadcast,
                                  .element = whole.element,
                                  .root = static_cast<std::int8_t>(source),
                                  .elements = whole.elements()},
                         .longest_bytes = whole.bytes};
  if (shares.local_index == source) {
    plan.outgoing = {{.data = whole.data, .bytes = whole.bytes}};
  } else {
    plan.incoming = {{.data = whole.data, .bytes = whole.bytes, .peer = source}};
  }
  return shm::make_transfer(std::move(plan));
}

std::unique_ptr<shm::Operation> make_all_gather(const LocalShares& shares, shm::CallKind kind,
                                                int root) {
  constexpr int kMostRoot = std::numeric_limits<decltype(shm::Call::root)>::max();
  shm::TransferPlan plan{.call = {.kind = kind,
                                  .element = shares.whole.element,
                                  .root = static_cast<std::int8_t>(root > kMostRoot ? -1 : root),
                                  .elements = shares.whole.elements()},
                         .longest_bytes = longest_bytes(shares)};
  for (int index = 0; index < static_cast<int>(shares.shares.size()); ++index) {
    const shm::Piece& share = shares.shares[static_cast<std::size_t>(index)];
    if (index == shares.local_index) {
      plan.outgoing = {{.data = share.data, .bytes = share.bytes}};
    } else {
      plan.incoming.push_back({.data = share.data, .bytes = share.bytes, .peer = index});
    }
  }
  return shm::make_transfer(std::move(plan));
}

}  // namespace lockstep::hierarchical
