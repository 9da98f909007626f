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

/// Memory for the gradients of ranks that have one copy, a slot for each rank, in a file that
/// outlives a generation. A rank that continues keeps its slot and what it has mapped. A rank that
/// comes new takes a slot that a lost rank has left, whose memory the system has made already.
/// A process holds its slot until it ends, or until this object and all tensors in the slot are
/// gone: whether or not it is in the group, no other gets the slot, and its memory stays.
/// Threads: any for allocate(), offset_of() and address_of() between two calls of assign().
/// Lifetime: tensors keep alive what they lie in.
/// Errors: SystemError where memory or slots are short.
class GradientSlots {
 public:
  static UniqueFd make_file(const std::string& name);
  explicit GradientSlots(UniqueFd file);
  GradientSlots(const GradientSlots&) = delete;
  GradientSlots& operator=(const GradientSlots&) = delete;

  int file() const { return file_.get(); }
  /// Of this rank; negative: it has none yet.
  int own_slot() const;

  /// Gives each rank of the group a slot, and the memory of those that nobody holds back to the
  /// system.
  /// Collective. Errors: as Work::wait.
  void assign(const ProcessGroup& group);

  // After assign().

  /// Memory of this rank's slot, which is used again when the tensor is gone.
  at::Tensor allocate(std::int64_t elements, at::ScalarType dtype) const;
  /// Where `tensor` of this rank begins: the same number on all ranks, at least kFirstPlace.
  /// Nothing where it does not lie in the slot, without gaps.
  std::optional<std::uint64_t> offset_of(const at::Tensor& tensor) const;
  /// The address in this process of such a place, of any rank.
  const std::byte* address_of(std::uint64_t offset) const {
    const std::uint64_t place = offset - kFirstPlace;
    return slots_[place / slot_bytes_]->data() + place % slot_bytes_;
  }
  static constexpr std::uint64_t kFirstPlace = 64;

 private:
  class HeldSlot;
  static constexpr std::size_t kSlots = StepLog::kMostRanks;

  std::vector<bool> held_slots() const;

  const UniqueFd file_;
  const std::uint64_t slot_bytes_;
  const std::unique_ptr<const SharedMapping> marks_;  ///< Behind the slots: who holds them.
  std::shared_ptr<HeldSlot> own_ = {};                ///< Null: this rank has none yet.
  std::array<std::shared_ptr<const SharedMapping>, kSlots> slots_ = {};  ///< Null: of no rank.
};

}  // namespace lockstep::inline internal
