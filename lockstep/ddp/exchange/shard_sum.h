#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/internal/shard_plan.h"

namespace lockstep::inline internal {

/// Sums values of logical shards over all ranks in the order of ShardTree, so that the sum has the
/// same bits on any number of ranks and over any backend. A value is a list of flat tensors.
///
///   ShardSum sum(group, shards, {{at::kFloat, 1000}});
///   for (each shard of this rank) { fill sum.next_value(); sum.push(shard); }
///   const std::vector<at::Tensor>& sums = sum.finish();      // collective
///
/// A rank sums its own shards while it computes them. finish() divides the elements among the
/// ranks: each sums one part of all ranks' partial sums, and then all parts are gathered. Where the
/// group shares memory, ranks read the partial sums of others where they lie; elsewhere they send
/// them, in chunks. Two ranks with one partial sum each are an all-reduce in place.
/// Threads: one at a time.
/// Lifetime: keeps the group alive. What finish() returns is valid until the next finish().
/// Errors: of finish() as Work::wait; then clear() it.
class ShardSum {
 public:
  using Layout = std::vector<std::pair<at::ScalarType, std::int64_t>>;

  ShardSum(ProcessGroup group, int shards, const Layout& layout);

  /// Takes a flat tensor of the layout's size as tensor `index` of the next value, without a copy.
  /// It may be written to. Before next_value(), and only where may_adopt().
  void adopt(std::size_t index, at::Tensor flat);
  /// Whether peers can read the tensor where it lies, or need not.
  bool may_adopt(const at::Tensor& tensor) const;
  /// Tensors of the layout's sizes or more, whose contents are undefined but for those adopted.
  const std::vector<at::Tensor>& next_value();
  /// Takes next_value() as that of a shard. In order, all shards of this rank's block.
  void push(int shard);
  /// Gives up what was pushed.
  void clear();
  /// The sums over all shards. Collective.
  const std::vector<at::Tensor>& finish();

 private:
  struct Value {
    std::vector<at::Tensor> tensors;
    std::vector<bool> is_adopted;
  };
  Value empty_value() const;
  at::Tensor allocate(std::size_t index);
  void recycle(const Value& value);
  at::Tensor without_padding(const Value& value, std::size_t index) const;
  bool is_all_reduce() const;
  void all_reduce();
  void exchange(std::size_t index);
  bool exchange_in_place(std::size_t index);
  std::vector<std::vector<std::uint64_t>> gather_places(std::size_t index) const;
  at::Tensor sum_of(const std::vector<at::Tensor>& rows) const;

  ProcessGroup group_;
  int shards_;
  ShardBlock own_;
  int most_sums_;                    // of any rank
  std::vector<ShardNode> of_ranks_;  // all ranks' partial sums, in their order
  Layout layout_;
  std::vector<std::int64_t> padded_;  // elements of each tensor, a multiple of the ranks' parts
  ShardTree tree_;
  std::vector<Value> sums_;  // of tree_'s nodes
  std::optional<Value> next_;
  std::vector<std::vector<at::Tensor>> spare_;  // by index, padded
  Value padded_results_;
  std::vector<at::Tensor> results_;  // of the layout's sizes
};

}  // namespace lockstep::inline internal
