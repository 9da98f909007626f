#include "lockstep/optim/internal/lamb_shares.h"

#include <algorithm>

#include <ATen/ops/empty.h>

namespace lockstep::inline internal {
namespace {

std::int64_t blocks_of(std::int64_t elements) {
  return (elements + kLambBlockElements - 1) / kLambBlockElements;
}

}  // namespace

void LambShares::run() {
  std::vector<std::shared_ptr<ModelCopy>> copies;
  for (const Share& share : shares_) {
    if (std::ranges::find(copies, share.place.copy) == copies.end()) {
      copies.push_back(share.place.copy);
    }
  }
  for (Share& share : shares_) update_states(share);
  for (const auto& copy : copies) copy->meet_in_step();
  for (Share& share : shares_) add_divided_blocks(share);
  for (const auto& copy : copies) exchange_blocks(copy);
  for (const Share& share : shares_) {
    const double ratio = lamb_trust_ratio(sum_of_lamb_blocks(share.blocks));
    const ModelCopy::Part part = share.place.copy->part(share.place.index);
    if (part.size() == 0) continue;
    update_range(LambScaledUpdate{.update = share.update, .scale = share.lr * ratio},
                 sub_range(share.whole, part.begin, part.end));
  }
  shares_.clear();
}

// Averages a block at a time into a buffer that stays in the cache.
void LambShares::update_states(Share& share) {
  const auto& [copy, index] = share.place;
  const ModelCopy::Part part = copy->part(index);
  share.blocks.resize(static_cast<std::size_t>(blocks_of(share.whole.elements)));
  std::int64_t end = 0;
  for (std::int64_t begin = part.begin; begin < part.end; begin = end) {
    const std::int64_t block = begin / kLambBlockElements;
    end = std::min((block + 1) * kLambBlockElements, part.end);
    copy->average(index, begin, end - begin, copy->scratch());
    UpdateRange range = sub_range(share.whole, begin, end);
    range.gradient = copy->scratch();
    const LambSquares squares = update_lamb_block(share.update, range);
    const bool is_whole = begin == block * kLambBlockElements &&
                          (end == begin + kLambBlockElements || end == share.whole.elements);
    if (is_whole) share.blocks[static_cast<std::size_t>(block)] = squares;
  }
}

// Those of several ranks' parts; the rank that has the first element adds one up.
void LambShares::add_divided_blocks(Share& share) {
  const auto& [copy, index] = share.place;
  const ModelCopy::Part part = copy->part(index);
  if (part.size() == 0) return;
  const std::int64_t last = (part.end - 1) / kLambBlockElements;
  const std::int64_t begin = last * kLambBlockElements;
  const std::int64_t end = std::min(begin + kLambBlockElements, share.whole.elements);
  if (begin < part.begin || end == part.end) return;
  share.blocks[static_cast<std::size_t>(last)] =
      lamb_block_squares(share.update, sub_range(share.whole, begin, end));
}

// Each is of one rank, so that their sum is exact.
void LambShares::exchange_blocks(const std::shared_ptr<ModelCopy>& copy) {
  std::vector<LambSquares*> blocks;
  for (Share& share : shares_) {
    if (share.place.copy != copy) continue;
    for (LambSquares& block : share.blocks) blocks.push_back(&block);
  }
  const at::Tensor all = at::empty({2 * std::ssize(blocks)}, at::kDouble);
  auto* const sums = all.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    sums[2 * i] = blocks[i]->parameter;
    sums[2 * i + 1] = blocks[i]->update;
  }
  copy->add_up(all);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    *blocks[i] = {.parameter = sums[2 * i], .update = sums[2 * i + 1]};
  }
}

}  // namespace lockstep::inline internal
