#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/one_copy/internal/step_log.h"
#include "lockstep/os/memory/memory_file.h"

namespace lockstep::inline internal {

/// Memory for the gradients of ranks with one copy, a slot per rank, in a file that outlives a
/// generation. A surviving rank keeps its slot and its mappings. A replacement takes the slot of a
/// lost rank, whose memory is already allocated. A process holds its slot while it lives and this
/// object or a tensor in the slot exists; no other rank gets the slot meanwhile.
/// Threads: any for allocate(), offset_of() and address_of() between two calls of assign().
/// Lifetime: tensors keep their memory alive.
/// Errors: SystemError if memory or slots are short.
class GradientSlots {
 public:
  static UniqueFd make_file(const std::string& name);
  explicit GradientSlots(UniqueFd file);
  GradientSlots(const GradientSlots&) = delete;
  GradientSlots& operator=(const GradientSlots&) = delete;

  int file() const { return file_.get(); }
  /// This rank's slot; negative: none yet.
  int own_slot() const;
  /// Whether a process that lives holds the slot.
  bool is_held(std::size_t slot) const;
  static constexpr std::size_t kSlots = StepLog::kMostRanks;

  /// Gives each rank of the group a slot, and returns the memory of unused slots to the system.
  /// Collective.
  /// Errors: as Work::wait.
  void assign(const ProcessGroup& group);

  // After assign().

  /// Memory in this rank's slot, which is reused when the tensor is destroyed.
  at::Tensor allocate(std::int64_t elements, at::ScalarType dtype) const;
  /// Offset of this rank's `tensor`, valid on all ranks, at least kFirstPlace. Empty unless all of
  /// it is in the slot, without gaps.
  std::optional<std::uint64_t> offset_of(const at::Tensor& tensor) const;
  /// Address in this process of any rank's offset.
  const std::byte* address_of(std::uint64_t offset) const {
    const std::uint64_t place = offset - kFirstPlace;
    return slots_[place / slot_bytes_]->data() + place % slot_bytes_;
  }
  static constexpr std::uint64_t kFirstPlace = 64;

 private:
  class HeldSlot;

  std::vector<bool> held_slots() const;

  const UniqueFd file_;
  const std::uint64_t slot_bytes_;
  const std::unique_ptr<const SharedMapping> marks_;  ///< Behind the slots: who holds them.
  std::shared_ptr<HeldSlot> own_ = {};                ///< Null: this rank has none yet.
  std::array<std::shared_ptr<const SharedMapping>, kSlots> slots_ = {};  ///< Null: of no rank.
};

}  // namespace lockstep::inline internal
