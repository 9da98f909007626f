// Averages of the gradients over all ranks.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include <ATen/Parallel.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/internal/check.h"
#include "lockstep/comm/kernels/reduce_kernel.h"
#include "lockstep/one_copy/internal/hash.h"
#include "lockstep/one_copy/internal/model_copy.h"

namespace lockstep::inline internal {
namespace {

// Fewer elements are not worth another thread.
constexpr std::int64_t kGrainElements = std::int64_t{1} << 15;

}  // namespace

std::vector<at::Tensor> ModelCopy::averaged_gradients() {
  const c10::NoGradGuard no_grad;
  std::vector<std::size_t> all(parameters_.size());
  for (std::size_t index = 0; index < all.size(); ++index) all[index] = index;
  check_gradients_are_held("average of ", all);
  gather_places(all);
  std::vector<at::Tensor> averages(parameters_.size());
  for (const std::size_t index : all) {
    if (!is_reached(index)) continue;
    const at::Tensor& model = views_[index];
    averages[index] = at::empty_strided(model.sizes(), model.strides(), model.options());
    auto* const target = static_cast<std::byte*>(averages[index].mutable_data_ptr());
    const std::int64_t chunk = kChunkBytes / element_bytes_of(index);
    for (std::int64_t begin = 0; begin < model.numel(); begin += chunk) {
      average(index, begin, std::min(chunk, model.numel() - begin),
              target + begin * element_bytes_of(index));
    }
  }
  forget_sources();
  // Nobody gives a gradient up before all have read it.
  meet("average of ");
  return averages;
}

void ModelCopy::average(std::size_t index, std::int64_t begin, std::int64_t elements,
                        std::byte* target) const {
  if (has_sum(index)) {
    copy_sum(index, begin, elements, target);
  } else if (held_[index].is_averaged) {
    copy_averages(index, begin, elements, target);
  } else {
    average_sources(index, begin, elements, target);
  }
}

void ModelCopy::average_sources(std::size_t index, std::int64_t begin, std::int64_t elements,
                                std::byte* target) const {
  const Element element = elements_[index];
  // In the order of an all-reduce, so that the bits are the same.
  const double factor = 1.0 / group_.world_size() * held_[index].weight;
  const Reduction reduction{.element = element, .op = ReduceOp::kAvg, .factor = factor};
  const std::int64_t bytes = element_bytes_of(index);
  at::parallel_for(0, elements, kGrainElements, [&](std::int64_t first, std::int64_t last) {
    std::array<const std::byte*, StepLog::kMostRanks> sources;
    std::ranges::transform(sources_[index], sources.begin(), [&](const std::byte* source) {
      return source == nullptr ? zeros_.get() : source + (begin + first) * bytes;
    });
    std::byte* const to = target + first * bytes;
    reduce(reduction, std::span(sources).first(sources_[index].size()), std::span(&to, 1),
           static_cast<std::size_t>(last - first));
  });
}

// Each rank has averaged its part where its own gradient lies.
void ModelCopy::copy_averages(std::size_t index, std::int64_t begin, std::int64_t elements,
                              std::byte* target) const {
  const std::int64_t bytes = element_bytes_of(index);
  for (int rank = 0; rank < averages_.ranks(); ++rank) {
    const Part of_rank = averages_.part(index, rank);
    const std::int64_t first = std::max(begin, of_rank.begin);
    const std::int64_t last = std::min(begin + elements, of_rank.end);
    if (first >= last) continue;
    std::memcpy(target + (first - begin) * bytes,
                sources_[index][static_cast<std::size_t>(rank)] + first * bytes,
                static_cast<std::size_t>((last - first) * bytes));
  }
  const float factor = held_[index].factor;
  if (factor == 1) return;
  at::from_blob(target, {elements}, at::TensorOptions(views_[index].scalar_type()))
      .mul_(at::scalar_tensor(factor));
}

ModelCopy::Squares ModelCopy::average_in_place(const std::vector<std::size_t>& indices) {
  const c10::NoGradGuard no_grad;
  check_gradients_are_held("norm of ", indices);
  gather_places(indices);
  Squares squares;
  for (const std::size_t index : indices) {
    if (!is_reached(index)) continue;
    const Squares of_part = average_part(index);
    squares.current += of_part.current;
    squares.of_backward += of_part.of_backward;
  }
  forget_sources();
  return add_up_squares(squares);
}

// In the order of ranks. Other machines have averaged the same.
ModelCopy::Squares ModelCopy::add_up_squares(const Squares& own) const {
  const auto rows = gather_words(
      {std::bit_cast<std::int64_t>(own.current), std::bit_cast<std::int64_t>(own.of_backward)},
      "norm of ");
  Squares all;
  for (int rank = 0; rank < averages_.ranks(); ++rank) {
    const auto of_group = is_on_one_machine() ? rank : machines_[0][static_cast<std::size_t>(rank)];
    const auto& words = rows[static_cast<std::size_t>(of_group)];
    all.current += std::bit_cast<double>(words[0]);
    all.of_backward += std::bit_cast<double>(words[1]);
  }
  return all;
}

ModelCopy::Part ModelCopy::averaged_by(std::size_t index, int local_rank) const {
  return local_rank < averages_.ranks() ? averages_.part(index, local_rank) : Part{};
}

// A rank without a gradient has one from now on, as after an all-reduce.
std::byte* ModelCopy::own_gradient(std::size_t index) {
  if (!holds_gradient(index)) {
    const at::Tensor& view = views_[index];
    hold_gradient(index,
                  allocate_gradient(view.numel(), view.scalar_type())
                      .as_strided(view.sizes(), view.strides()),
                  held_[index].weight);
  }
  return static_cast<std::byte*>(held_[index].gradient.mutable_data_ptr());
}

ModelCopy::Squares ModelCopy::average_part(std::size_t index) {
  LOCKSTEP_ASSERT(!has_sum(index));
  std::byte* const gradient = own_gradient(index);
  Held& held = held_[index];
  const Element element = elements_[index];
  const std::int64_t bytes = element_bytes_of(index);
  const std::int64_t chunk = kChunkBytes / bytes;
  const Part own_part = averaged_by(index, local_.rank());
  double squares = 0;
  for (std::int64_t begin = own_part.begin; begin < own_part.end; begin += chunk) {
    const std::int64_t elements = std::min(chunk, own_part.end - begin);
    std::byte* const target = gradient + begin * bytes;
    if (!held.is_averaged) average_sources(index, begin, elements, target);
    squares += sum_of_squares(element, target, static_cast<std::size_t>(elements));
  }
  if (!held.squares) held.squares = squares;
  held.is_averaged = true;
  return {.current = squares * held.factor * held.factor, .of_backward = *held.squares};
}

void ModelCopy::scale_averages(const std::vector<std::size_t>& indices, float factor) {
  for (const std::size_t index : indices) {
    Held& held = held_[index];
    if (!holds_gradient(index) || !held.is_averaged) continue;
    held.factor *= factor;
    held.made = hash_of(&factor, sizeof factor, held.made);
  }
}

void ModelCopy::clamp_averages(const std::vector<std::size_t>& indices, double most) {
  const c10::NoGradGuard no_grad;
  for (const std::size_t index : indices) {
    if (!holds_gradient(index) || !held_[index].is_averaged) continue;
    averaged_part(index).clamp_(-most, most);
    held_[index].made = hash_of(&most, sizeof most, held_[index].made);
  }
}

at::Tensor ModelCopy::averaged_part(std::size_t index) {
  Held& held = held_[index];
  LOCKSTEP_ASSERT(held.is_averaged);
  const Part own_part = averaged_by(index, local_.rank());
  auto* const first = static_cast<std::byte*>(held.gradient.mutable_data_ptr());
  at::Tensor own = at::from_blob(first + own_part.begin * element_bytes_of(index),
                                 {own_part.size()}, at::TensorOptions(views_[index].scalar_type()));
  if (held.factor != 1) own.mul_(at::scalar_tensor(held.factor));
  held.factor = 1;
  return own;
}

}  // namespace lockstep::inline internal
