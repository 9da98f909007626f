#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/comm/kernels/element.h"
#include "lockstep/data/internal/shard_plan.h"

namespace lockstep::inline internal {

/// Runs a SumPlan on elements, block by block, so that sums in between stay in the cache.
/// Threads: one at a time.
class PlannedSum {
 public:
  explicit PlannedSum(SumPlan plan);

  const SumPlan& plan() const { return plan_; }

  /// Writes result i to all targets[i]. A target may be the same pointer as an input; else they
  /// must not overlap. With several results no target may be an input.
  void run(Element element, std::span<const std::byte* const> inputs,
           const std::vector<std::vector<std::byte*>>& targets, std::size_t elements);

 private:
  static constexpr int kNoSlot = -1;

  SumPlan plan_;
  std::vector<int> slots_;      // of sums: where a sum in between is kept, until it is used
  std::vector<int> result_of_;  // of values: the number of the result, or -1
  std::vector<std::vector<std::byte>> kept_;  // by slot
};

}  // namespace lockstep::inline internal
