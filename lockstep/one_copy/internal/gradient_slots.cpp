#include "lockstep/one_copy/internal/gradient_slots.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <fcntl.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/one_copy/internal/slot_plan.h"

namespace lockstep::inline internal {
namespace {

constexpr std::size_t kMostBytesOfName = 200;
// Backward takes memory for the next gradients, and for what has their size, while others are held.
// What is never written takes no memory.
constexpr std::uint64_t kGradientsOfSlot = 8;
constexpr std::uint64_t kSlotUnit = std::uint64_t{64} << 20;

}  // namespace

UniqueFd GradientSlots::make_file(const std::string& name, std::uint64_t gradient_bytes) {
  const std::uint64_t slot_bytes =
      (kGradientsOfSlot * gradient_bytes / kSlotUnit + 1) * kSlotUnit;
  return make_memory_file(
      concat("lockstep gradients of ", name).substr(0, kMostBytesOfName).c_str(),
      kSlots * slot_bytes);
}

GradientSlots::GradientSlots(UniqueFd file)
    : file_(std::move(file)),
      slot_bytes_(memory_file_bytes(file_.get()).value_or(0) / kSlots) {}

void GradientSlots::assign(const ProcessGroup& group) {
  std::vector<int> had;
  for (const auto& row : gather_rows(group, {own_})) had.push_back(static_cast<int>(row.at(0)));
  const std::vector<int> assigned = assign_slots(had, static_cast<int>(kSlots));
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    const std::uint64_t begin = slot * slot_bytes_;
    if (std::ranges::find(assigned, static_cast<int>(slot)) != assigned.end()) {
      if (slots_[slot]) continue;
      slots_[slot] = std::make_shared<SharedMapping>(file_.get(), begin, slot_bytes_);
      continue;
    }
    slots_[slot].reset();
    if (group.rank() != 0) continue;
    // Where it fails the memory goes back with the file.
    ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                static_cast<off_t>(slot_bytes_));
  }
  const int now = assigned[static_cast<std::size_t>(group.rank())];
  if (std::exchange(own_, now) == now) return;
  const auto slot = static_cast<std::size_t>(now);
  heap_ = std::make_shared<MemoryHeap>(slots_[slot], slot * slot_bytes_ + kFirstPlace);
}

at::Tensor GradientSlots::allocate(std::int64_t elements, at::ScalarType dtype) const {
  std::byte* const data =
      heap_->allocate(static_cast<std::uint64_t>(elements) * c10::elementSize(dtype));
  return at::from_blob(
      data, {elements}, [heap = heap_](void* block) { heap->free(static_cast<std::byte*>(block)); },
      at::TensorOptions(dtype));
}

std::optional<std::uint64_t> GradientSlots::offset_of(const at::Tensor& tensor) const {
  if (!tensor.is_cpu() || !tensor.is_non_overlapping_and_dense()) return std::nullopt;
  return heap_->offset_of(tensor.const_data_ptr(), tensor.nbytes());
}

}  // namespace lockstep::inline internal
