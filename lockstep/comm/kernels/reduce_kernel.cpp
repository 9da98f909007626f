#include "lockstep/comm/kernels/reduce_kernel.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lockstep/base/internal/check.h"
#include "lockstep/comm/kernels/copy_kernel.h"
#include "lockstep/comm/kernels/kernel_table.h"

namespace lockstep::inline internal {
namespace {

bool contains(std::span<const std::byte* const> pointers, const std::byte* pointer) {
  return std::find(pointers.begin(), pointers.end(), pointer) != pointers.end();
}

std::size_t bytes_past_line(const std::byte* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kCacheLineBytes;
}

/// Moves the targets to be streamed to the end and returns how many they are: those that are no
/// source, for a store past the caches to lines just read is slow, and that begin lines together
/// with the first of them.
std::size_t partition_streamed(std::span<const std::byte* const> sources,
                               std::vector<std::byte*>& targets) {
  const std::byte* first = nullptr;
  const auto ordinary_end =
      std::stable_partition(targets.begin(), targets.end(), [&](const std::byte* target) {
        if (contains(sources, target)) return true;
        if (first == nullptr) first = target;
        return bytes_past_line(target) != bytes_past_line(first);
      });
  return static_cast<std::size_t>(targets.end() - ordinary_end);
}

bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
}

double fold(double* lanes) {
  for (std::size_t width = kSquareLanes / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

}  // namespace

void reduce(const Reduction& reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> targets, std::size_t elements, Store store,
            InstructionSet set) {
  reduce_converted(reduction, reduction.element, sources, targets, elements, store, set);
}

void reduce_converted(const Reduction& reduction, Element source_element,
                      std::span<const std::byte* const> sources,
                      std::span<std::byte* const> targets, std::size_t elements, Store store,
                      InstructionSet set) {
  LOCKSTEP_ASSERT(!sources.empty());
  Element target_element = reduction.element;
  if (is_bitwise(reduction.op) && target_element != Element::kBool) {
    elements *= element_bytes(target_element);
    source_element = target_element = Element::kUint8;
  }
  const ReduceKernel kernel =
      kernel_table(set).find_reduce(source_element, target_element, reduction.op);
  LOCKSTEP_ASSERT(kernel != nullptr);
  ReduceCall call{.sources = sources.data(),
                  .source_count = sources.size(),
                  .targets = targets.data(),
                  .ordinary_count = targets.size(),
                  .streamed_count = 0,
                  .elements = elements,
                  .factor = reduction.factor};
  if (store == Store::kOrdinary) {
    kernel(call);
    return;
  }
  std::vector<std::byte*> ordered(targets.begin(), targets.end());
  call.streamed_count = partition_streamed(sources, ordered);
  call.ordinary_count -= call.streamed_count;
  call.targets = ordered.data();
  kernel(call);
}

double reduce_and_sum_squares(const Reduction& reduction, Element source_element,
                              std::span<const std::byte* const> sources,
                              std::span<std::byte* const> targets, std::size_t elements,
                              Store store, InstructionSet set) {
  const SquaresKernel add_squares = kernel_table(set).find_squares(reduction.element);
  LOCKSTEP_ASSERT(add_squares != nullptr && !targets.empty());
  const bool is_streamed =
      store == Store::kNonTemporal &&
      !std::all_of(targets.begin(), targets.end(),
                   [&](const std::byte* target) { return contains(sources, target); });
  // The squares are taken piece by piece, while the nearest cache holds the results. Where they go
  // past it, a piece is formed beside the targets and then copied.
  constexpr std::size_t kPieceElements = 16 * kSquareLanes;
  alignas(kCacheLineBytes) std::byte piece[kPieceElements * sizeof(double)];
  std::vector<const std::byte*> piece_sources(sources.begin(), sources.end());
  std::vector<std::byte*> piece_targets{piece};
  if (!is_streamed) piece_targets.assign(targets.begin(), targets.end());

  const std::size_t source_bytes = element_bytes(source_element);
  const std::size_t target_bytes = element_bytes(reduction.element);
  double lanes[kSquareLanes] = {};
  for (std::size_t i = 0; i < elements; i += kPieceElements) {
    const std::size_t count = std::min(kPieceElements, elements - i);
    reduce_converted(reduction, source_element, piece_sources, piece_targets, count,
                     Store::kOrdinary, set);
    add_squares(piece_targets[0], count, lanes);
    for (const std::byte*& source : piece_sources) source += count * source_bytes;
    if (!is_streamed) {
      for (std::byte*& target : piece_targets) target += count * target_bytes;
      continue;
    }
    for (std::byte* target : targets) {
      const Store its_store = contains(sources, target) ? Store::kOrdinary : store;
      copy(target + i * target_bytes, piece, count * target_bytes, its_store, set);
    }
  }
  return fold(lanes);
}

double sum_of_squares(Element element, const std::byte* values, std::size_t elements,
                      InstructionSet set) {
  const SquaresKernel add_squares = kernel_table(set).find_squares(element);
  LOCKSTEP_ASSERT(add_squares != nullptr);
  double lanes[kSquareLanes] = {};
  add_squares(values, elements, lanes);
  return fold(lanes);
}

}  // namespace lockstep::inline internal
