#include "lockstep/one_copy/internal/gradient_slots.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <fcntl.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/one_copy/internal/slot_plan.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/memory/life_mark.h"
#include "lockstep/os/memory/memory_heap.h"

namespace lockstep::inline internal {
namespace {

constexpr std::size_t kMostBytesOfName = 200;
constexpr std::uint64_t kSlotUnit = std::uint64_t{64} << 20;
// Address space for the slots of all ranks.
constexpr std::uint64_t kMostSlotBytes = std::uint64_t{1} << 39;

struct alignas(64) Mark {
  LifeMark life;
};
constexpr std::uint64_t kMarkBytes = 64 * 1024;

LifeMark& mark_of(const SharedMapping& marks, std::size_t slot) {
  return reinterpret_cast<Mark*>(marks.data())[slot].life;
}

}  // namespace

// Tensors in the slot keep it, and what it needs.
class GradientSlots::HeldSlot {
 public:
  HeldSlot(std::size_t number, SharedMapping marks,
           const std::shared_ptr<const SharedMapping>& memory)
      : heap(memory, number * memory->bytes() + kFirstPlace),
        number_(number),
        marks_(std::move(marks)) {
    mark_of(marks_, number_).hold();
  }
  ~HeldSlot() { mark_of(marks_, number_).let_go(); }
  HeldSlot(const HeldSlot&) = delete;
  HeldSlot& operator=(const HeldSlot&) = delete;

  std::size_t number() const { return number_; }

  MemoryHeap heap;

 private:
  const std::size_t number_;
  const SharedMapping marks_;
};

// What has the size of a gradient may lie there, too, as clones that the program keeps. So a slot
// ends where the memory of the machine does; what is never written takes none.
UniqueFd GradientSlots::make_file(const std::string& name) {
  static_assert(kSlots * sizeof(Mark) <= kMarkBytes);
  const std::uint64_t slot_bytes =
      (std::min(total_memory_bytes(), kMostSlotBytes - 1) / kSlotUnit + 1) * kSlotUnit;
  return make_memory_file(
      concat("lockstep gradients of ", name).substr(0, kMostBytesOfName).c_str(),
      kSlots * slot_bytes + kMarkBytes);
}

GradientSlots::GradientSlots(UniqueFd file)
    : file_(std::move(file)),
      slot_bytes_((memory_file_bytes(file_.get()).value_or(kMarkBytes) - kMarkBytes) / kSlots),
      marks_(std::make_unique<SharedMapping>(file_.get(), kSlots * slot_bytes_, kMarkBytes)) {
  marks_->populate(0, kSlots * sizeof(Mark));
}

int GradientSlots::own_slot() const {
  return own_ ? static_cast<int>(own_->number()) : -1;
}

bool GradientSlots::is_held(std::size_t slot) const {
  return mark_of(*marks_, slot).is_held();
}

std::vector<bool> GradientSlots::held_slots() const {
  std::vector<bool> is_held(kSlots);
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    is_held[slot] = this->is_held(slot);
  }
  return is_held;
}

void GradientSlots::assign(const ProcessGroup& group) {
  // What rank 0 sees counts for all. It looks before any rank holds a slot that it gets here.
  std::vector<std::int64_t> told{own_slot()};
  told.resize(1 + kSlots);
  if (group.rank() == 0) std::ranges::copy(held_slots(), told.begin() + 1);
  std::vector<int> had;
  std::vector<bool> is_held;
  for (const auto& row : gather_rows(group, told)) {
    if (had.empty()) is_held.assign(row.begin() + 1, row.end());
    had.push_back(static_cast<int>(row.at(0)));
  }
  const std::optional<std::vector<int>> assigned = assign_slots(had, is_held);
  if (!assigned) {
    throw SystemError(concat("giving ", had.size(), " ranks memory for gradients"), EBUSY,
                      concat(std::ranges::count(is_held, true), " of ", kSlots,
                             " slots are held; wait for the end of processes that have left"));
  }
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    const std::uint64_t begin = slot * slot_bytes_;
    if (std::ranges::find(*assigned, static_cast<int>(slot)) != assigned->end()) {
      if (slots_[slot]) continue;
      slots_[slot] = std::make_shared<SharedMapping>(file_.get(), begin, slot_bytes_);
      continue;
    }
    slots_[slot].reset();
    if (group.rank() != 0 || is_held[slot]) continue;
    // Where it fails the memory goes back with the file.
    ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                static_cast<off_t>(slot_bytes_));
  }
  const int now = (*assigned)[static_cast<std::size_t>(group.rank())];
  if (own_slot() == now) return;
  const auto slot = static_cast<std::size_t>(now);
  SharedMapping marks(file_.get(), kSlots * slot_bytes_, kMarkBytes);
  own_ = std::make_shared<HeldSlot>(slot, std::move(marks), slots_[slot]);
}

at::Tensor GradientSlots::allocate(std::int64_t elements, at::ScalarType dtype) const {
  std::byte* const data =
      own_->heap.allocate(static_cast<std::uint64_t>(elements) * c10::elementSize(dtype));
  return at::from_blob(
      data, {elements},
      [own = own_](void* block) { own->heap.free(static_cast<std::byte*>(block)); },
      at::TensorOptions(dtype));
}

std::optional<std::uint64_t> GradientSlots::offset_of(const at::Tensor& tensor) const {
  if (!tensor.is_cpu() || !tensor.is_non_overlapping_and_dense()) return std::nullopt;
  return own_->heap.offset_of(tensor.const_data_ptr(), tensor.nbytes());
}

}  // namespace lockstep::inline internal
