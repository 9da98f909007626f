#include "lockstep/one_copy/internal/copy_layout.h"

#include <algorithm>
#include <utility>

namespace lockstep::inline internal {
namespace {

// Of any page that a kernel has, so that the layout does not depend on the machine.
constexpr std::uint64_t kLargestPage = 64 * 1024;
constexpr std::int64_t kLeastStateBytes = 4;

std::uint64_t on_a_page(std::uint64_t bytes) {
  return (bytes + kLargestPage - 1) / kLargestPage * kLargestPage;
}

std::int64_t blocks_of(const CopyLayout::Item& item) {
  return (item.elements + CopyLayout::kBlockElements - 1) / CopyLayout::kBlockElements;
}

std::uint64_t bytes_of(const CopyLayout::Item& item, std::int64_t element_bytes) {
  return static_cast<std::uint64_t>(blocks_of(item) * CopyLayout::kBlockElements * element_bytes);
}

// The first block of a rank, for which total · rank may be too large a number.
std::int64_t first_block(std::int64_t total, int ranks, int rank) {
  return total / ranks * rank + std::min<std::int64_t>(total % ranks, rank);
}

}  // namespace

CopyLayout::CopyLayout(std::vector<Item> items, int ranks)
    : items_(std::move(items)), ranks_(ranks) {
  std::int64_t blocks = 0;
  std::uint64_t parameter_bytes = 0;
  for (const Item& item : items_) {
    first_blocks_.push_back(blocks);
    offsets_.push_back(parameter_bytes);
    state_offsets_.push_back(state_bytes_);
    blocks += blocks_of(item);
    parameter_bytes += bytes_of(item, item.element_bytes);
    state_bytes_ += bytes_of(item, std::max(item.element_bytes, kLeastStateBytes));
  }
  first_blocks_.push_back(blocks);
  const std::uint64_t states_begin = on_a_page(parameter_bytes);
  for (std::uint64_t& offset : state_offsets_) offset += states_begin;
  state_bytes_ = on_a_page(state_bytes_);
  bytes_ = states_begin + kStates * state_bytes_;
}

CopyLayout::Part CopyLayout::part(std::size_t index, int rank) const {
  const std::int64_t total = first_blocks_.back();
  const std::int64_t own = first_blocks_[index];
  const std::int64_t elements = items_[index].elements;
  const auto clip = [&](std::int64_t block) {
    return std::clamp<std::int64_t>((block - own) * kBlockElements, 0, elements);
  };
  return {.begin = clip(first_block(total, ranks_, rank)),
          .end = clip(first_block(total, ranks_, rank + 1))};
}

}  // namespace lockstep::inline internal
