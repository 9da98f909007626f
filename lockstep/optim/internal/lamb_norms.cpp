#include "lockstep/optim/internal/lamb_norms.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include <ATen/ops/empty.h>

namespace lockstep::inline internal {
namespace {

/// Of a block, on copies of its states.
LambSquares squares_of(const LambUpdate& update, const UpdateRange& whole, std::int64_t begin,
                       std::int64_t end, const void* gradient,
                       const std::array<at::Tensor, 2>& copies) {
  const std::size_t bytes = c10::elementSize(whole.dtype);
  const std::size_t state_bytes = c10::elementSize(whole.state_dtype);
  const auto first = static_cast<std::size_t>(begin);
  UpdateRange block = whole;
  block.elements = end - begin;
  block.parameter = static_cast<std::byte*>(whole.parameter) + first * bytes;
  block.gradient = gradient;
  for (std::size_t k = 0; k < copies.size(); ++k) {
    block.states[k] = copies[k].mutable_data_ptr();
    const std::size_t size = static_cast<std::size_t>(block.elements) * state_bytes;
    if (whole.states[k] == nullptr) {
      std::memset(block.states[k], 0, size);
    } else {
      std::memcpy(block.states[k],
                  static_cast<const std::byte*>(whole.states[k]) + first * state_bytes, size);
    }
  }
  return update_lamb_states(update, block);
}

}  // namespace

void LambNorms::add(const ModelCopy::Place& place, const LambUpdate& update,
                    const UpdateRange& whole) {
  const auto& [copy, index] = place;
  const ModelCopy::Part part = copy->part(index);
  static_assert(kLambBlockElements == ModelCopy::kSumElements);
  const std::int64_t count = (whole.elements + kLambBlockElements - 1) / kLambBlockElements;
  Parameter& parameter = parameters_.emplace_back();
  parameter.place = place;
  parameter.blocks.resize(static_cast<std::size_t>(count));
  const auto options = at::TensorOptions(whole.state_dtype);
  const std::array<at::Tensor, 2> copies = {at::empty({kLambBlockElements}, options),
                                            at::empty({kLambBlockElements}, options)};
  for (std::int64_t block = 0; block < count; ++block) {
    const std::int64_t begin = block * kLambBlockElements;
    if (begin < part.begin || begin >= part.end) continue;
    const std::int64_t end = std::min(begin + kLambBlockElements, whole.elements);
    copy->average(index, begin, end - begin, copy->scratch());
    parameter.blocks[static_cast<std::size_t>(block)] =
        squares_of(update, whole, begin, end, copy->scratch(), copies);
  }
}

std::vector<double> LambNorms::ratios() {
  std::vector<std::shared_ptr<ModelCopy>> copies;
  for (const Parameter& parameter : parameters_) {
    if (std::ranges::find(copies, parameter.place.copy) != copies.end()) continue;
    copies.push_back(parameter.place.copy);
    exchange(parameter.place.copy);
  }
  std::vector<double> ratios;
  for (const Parameter& parameter : parameters_) {
    LambSquares sums;
    for (const LambSquares& block : parameter.blocks) {
      sums.parameter += block.parameter;
      sums.update += block.update;
    }
    ratios.push_back(lamb_trust_ratio(sums));
  }
  return ratios;
}

void LambNorms::exchange(const std::shared_ptr<ModelCopy>& copy) {
  std::vector<LambSquares*> blocks;
  for (Parameter& parameter : parameters_) {
    if (parameter.place.copy != copy) continue;
    for (LambSquares& block : parameter.blocks) blocks.push_back(&block);
  }
  std::vector<double> sums;
  for (const LambSquares* const block : blocks) {
    sums.insert(sums.end(), {block->parameter, block->update});
  }
  copy->add_up(sums);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    *blocks[i] = {.parameter = sums[2 * i], .update = sums[2 * i + 1]};
  }
}

}  // namespace lockstep::inline internal
