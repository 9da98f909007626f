#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/internal/shard_plan.h"
#include "lockstep/ddp/exchange/machine_groups.h"
#include "lockstep/ddp/exchange/planned_sum.h"

namespace lockstep::inline internal {

/// Sums values of logical shards over all ranks in the order of ShardTree, so the sum has the same
/// bits on any number of ranks and any backend. A value is a list of flat tensors.
///
///     ShardSum sum(group, shards, {{at::kFloat, 1000}});       // collective
///     for (each shard of this rank) { fill sum.next_value(); sum.push(shard); }
///     // or, without a copy: if (sum.left_sibling(shard)) { add to that; sum.push(shard); }
///     const std::vector<at::Tensor>& sums = sum.finish();      // collective
///
/// A rank sums its own shards while it computes them. finish() divides the elements among the ranks
/// of a machine: each reads all their partial sums of its share in shared memory and writes the sum
/// into the memory of all. With several machines it gets the machine's nodes of the tree instead,
/// and exchanges them, in chunks, with the ranks of the same share on other machines
/// (ShardExchangePlan).
/// Threads: one at a time.
/// Lifetime: keeps the group alive. The result of finish() is valid until the next finish().
/// Errors: from the constructor as machine_groups; from finish() as Work::wait, over several
/// machines the same on all ranks (rethrow_as_failure_of): clear() it then.
class ShardSum {
 public:
  using Layout = std::vector<std::pair<at::ScalarType, std::int64_t>>;

  ShardSum(ProcessGroup group, int shards, const Layout& layout);

  /// The ranks that read values in place, in memory which this group has allocated; empty if there
  /// are none.
  const ProcessGroup& local_group() const { return machines_.local; }

  /// Uses a flat tensor of the layout's size as tensor `index` of the next value, without a copy;
  /// it may be overwritten, also with the result. Call it before next_value(), and only if
  /// may_adopt().
  void adopt(std::size_t index, at::Tensor flat);
  /// Whether peers can read the tensor in place, or need not.
  bool may_adopt(const at::Tensor& tensor) const;
  /// Tensors of the layout's sizes, uninitialized except adopted ones.
  const std::vector<at::Tensor>& next_value();
  /// What the value of the next shard is added to first; null if it is the first of its node here.
  /// Instead of filling next_value(), the caller may add the value to these tensors, left plus
  /// right.
  const std::vector<at::Tensor>* left_sibling(int shard) const;
  /// Adds next_value() as the value of a shard; without one, the caller has added the value to
  /// left_sibling(). Call it for all shards of this rank's block, in order.
  void push(int shard);
  /// Discards what was pushed.
  void clear();
  /// The sums over all shards. Collective.
  const std::vector<at::Tensor>& finish();

 private:
  struct Value {
    std::vector<at::Tensor> tensors;
    std::vector<bool> is_adopted;
  };
  // Where a rank of this machine has a flat tensor: its partial sums, and where it wants the
  // result.
  struct Places {
    std::vector<std::byte*> sums;
    std::byte* target = nullptr;
  };
  // This rank's share of a flat tensor, in elements, and the size of the machine's largest one.
  struct Share {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t largest = 0;
    std::int64_t size() const { return end - begin; }
  };
  // What is exchanged between machines at once: of each machine a part.
  struct Messages {
    Messages(const ShardExchangePlan& plan, std::int64_t machines, std::int64_t part_size,
             at::ScalarType dtype);
    std::size_t bytes_of(std::int64_t elements) const;

    std::int64_t part;  // elements
    std::int64_t size;  // of a message to one machine: its part of each result
    at::Tensor sent;
    at::Tensor received;
    std::vector<const std::byte*> results = {};  // of all machines, in `received`
    at::Tensor sum;
    at::Tensor all;
  };
  Value empty_value() const;
  void fill(Value& value);
  void recycle(const Value& value);
  std::vector<std::vector<Places>> places_of_ranks() const;
  std::vector<Places> own_places() const;
  void exchange_all();
  void exchange(std::size_t index, const std::vector<std::vector<Places>>& of_ranks);
  void exchange_between(at::ScalarType dtype, const Share& share,
                        const std::vector<const std::byte*>& inputs,
                        const std::vector<std::byte*>& targets);
  void exchange_chunk(const Messages& messages, std::int64_t from, std::int64_t left,
                      const std::vector<const std::byte*>& inputs,
                      const std::vector<std::byte*>& targets);
  void meet_machine();

  ProcessGroup group_;
  MachineGroups machines_;
  int shards_;
  ShardBlock own_;
  ShardExchangePlan plan_;
  PlannedSum within_;
  PlannedSum between_;
  Layout layout_;
  ShardTree tree_;
  std::vector<Value> sums_;  // of tree_'s nodes
  std::optional<Value> next_;
  std::vector<std::vector<at::Tensor>> spare_;  // by index
  Value results_;
};

}  // namespace lockstep::inline internal
