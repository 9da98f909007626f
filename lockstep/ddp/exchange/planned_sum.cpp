#include "lockstep/ddp/exchange/planned_sum.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/comm/kernels/reduce_kernel.h"

namespace lockstep::inline internal {
namespace {

// Half of the smallest second-level caches holds the blocks of a few sums in between.
constexpr std::size_t kBlockBytes = std::size_t{32} << 10U;

}  // namespace

PlannedSum::PlannedSum(SumPlan plan) : plan_(std::move(plan)) {
  const auto inputs = static_cast<std::size_t>(plan_.inputs);
  result_of_.assign(inputs + plan_.sums.size(), -1);
  for (std::size_t i = 0; i < plan_.results.size(); ++i) {
    result_of_[static_cast<std::size_t>(plan_.results[i])] = static_cast<int>(i);
  }
  std::vector<int> free;
  int slots = 0;
  const auto release = [&](int value) {
    if (value >= plan_.inputs) free.push_back(slots_[static_cast<std::size_t>(value) - inputs]);
  };
  for (const auto& [left, right] : plan_.sums) {
    release(right);
    release(left);  // The sum takes its place.
    if (result_of_[inputs + slots_.size()] >= 0) {
      slots_.push_back(kNoSlot);
      continue;
    }
    if (free.empty()) free.push_back(slots++);
    slots_.push_back(free.back());
    free.pop_back();
  }
  kept_.assign(static_cast<std::size_t>(slots), std::vector<std::byte>(kBlockBytes));
}

void PlannedSum::run(Element element, std::span<const std::byte* const> inputs,
                     const std::vector<std::vector<std::byte*>>& targets, std::size_t elements) {
  const std::size_t bytes = elements * element_bytes(element);
  // Without sums in between there is nothing to keep in the cache.
  const std::size_t block = kept_.empty() ? bytes : kBlockBytes;
  const Reduction sum{.element = element, .op = ReduceOp::kSum};
  std::vector<std::byte*> outputs;
  for (std::size_t begin = 0; begin < bytes; begin += block) {
    const std::size_t count = std::min(block, bytes - begin);
    const auto address_of = [&](int value) -> const std::byte* {
      if (value < plan_.inputs) return inputs[static_cast<std::size_t>(value)] + begin;
      const int slot = slots_[static_cast<std::size_t>(value - plan_.inputs)];
      return kept_[static_cast<std::size_t>(slot)].data();
    };
    for (std::size_t i = 0; i < plan_.sums.size(); ++i) {
      const std::byte* const sources[] = {address_of(plan_.sums[i].left),
                                          address_of(plan_.sums[i].right)};
      outputs.clear();
      const int result = result_of_[static_cast<std::size_t>(plan_.inputs) + i];
      if (result < 0) {
        outputs.push_back(kept_[static_cast<std::size_t>(slots_[i])].data());
      } else {
        for (std::byte* const target : targets[static_cast<std::size_t>(result)]) {
          outputs.push_back(target + begin);
        }
      }
      reduce(sum, sources, outputs, count / element_bytes(element));
    }
    for (std::size_t i = 0; i < plan_.results.size(); ++i) {
      if (plan_.results[i] >= plan_.inputs) continue;
      const std::byte* const source = address_of(plan_.results[i]);
      for (std::byte* const target : targets[i]) {
        if (target + begin != source) std::memcpy(target + begin, source, count);
      }
    }
  }
}

}  // namespace lockstep::inline internal
