#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/backends/shm/operation.h"
#include "lockstep/comm/kernels/reduce_kernel.h"

namespace lockstep::shm {

/// Bytes to send, through part `part` of this rank's slots.
struct Outgoing {
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  int part = 0;
};

/// Bytes to receive from part `part` of `peer`'s slots.
struct Incoming {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  int peer = 0;
  int part = 0;
};

/// The reduction, in rank order, of what all ranks have in part `part`; this rank's own data is
/// `own`, which does not pass through a slot.
struct Reduced {
  Reduction reduction;
  const std::byte* own = nullptr;
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  int part = 0;
};

/// What a rank sends to itself: copied once the ranks have agreed on the call.
struct OwnCopy {
  std::byte* target = nullptr;
  const std::byte* source = nullptr;
  std::uint64_t expected_bytes = 0;
  std::uint64_t bytes = 0;
};

/// What one rank sends and receives in a collective other than an all-reduce. Slots are divided
/// into `parts` equal parts; longer data takes several rounds.
struct TransferPlan {
  Call call;
  int parts = 1;
  std::vector<Outgoing> outgoing = {};
  std::vector<Incoming> incoming = {};
  std::vector<Reduced> reduced = {};
  OwnCopy own = {};
  /// Longest piece that this rank sends or receives.
  std::uint64_t longest_bytes = 0;
  /// Pieces may differ in size between ranks: ranks first exchange the sizes (outgoing[r] is for
  /// rank r, incoming is from the ranks in order).
  bool sizes_differ = false;
};

/// A broadcast, gather, scatter, all-gather, all-to-all, reduce, reduce-scatter or barrier: a rank
/// copies what it sends to a slot, round by round, and reads what it receives from its peers'
/// slots. No tensor changes before all ranks have agreed on the call.
/// Errors: UsageError on every rank if one sends another size than its peer expects.
std::unique_ptr<Operation> make_transfer(TransferPlan plan);

}  // namespace lockstep::shm
