#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>

#include "lockstep/one_copy/internal/copy_layout.h"
#include "lockstep/one_copy/internal/gradient_slots.h"
#include "lockstep/os/memory/memory_file.h"
#include "lockstep/os/memory/private_mapping.h"

namespace lockstep::inline internal {

/// The memory file that holds parameters and optimizer state of one model, as this process maps it:
/// shared, through which a rank updates its shard, and copied on write, which the program sees; and
/// the ranks' gradients. No rank owns it: ranks of a later generation go on in it (KeptMemory).
/// Threads: any for mappings, else one at a time.
/// Lifetime: tensors over it keep it alive; the file lives as long as any process has it.
/// Errors: SystemError.
class CopyMemory {
 public:
  /// By parameter: the dtype of each state that lies in the memory.
  using StateTypes = std::vector<std::array<std::optional<c10::ScalarType>, CopyLayout::kStates>>;

  /// What the memory consists of.
  struct Files {
    UniqueFd data;
    UniqueFd gradients;
  };
  static Files make_files(const std::string& name, std::uint64_t data_bytes);
  /// `version`: that of the state that this rank counts as its own.
  static std::shared_ptr<CopyMemory> map(Files files, StateTypes types, std::uint64_t version);
  /// The memory whose mapping copied on write has this address; null: none.
  static std::shared_ptr<CopyMemory> find(const void* address);
  CopyMemory(const CopyMemory&) = delete;
  CopyMemory& operator=(const CopyMemory&) = delete;
  ~CopyMemory();

  const SharedMapping& shared() const { return shared_; }
  const PrivateMapping& own() const { return own_; }
  std::uint64_t data_bytes() const { return shared_.bytes() - kHeadBytes; }
  GradientSlots& gradients() { return gradients_; }
  /// As in Files.
  std::array<int, 2> files() const { return {file_.get(), gradients_.file()}; }
  /// Of the file, the same in all processes.
  std::uint64_t id() const { return id_; }
  StateTypes& types() { return types_; }
  const StateTypes& types() const { return types_; }

  /// By parameter: the states that optimizers of this rank have had there last. Weak: they keep the
  /// memory alive.
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl>;
  using States = std::vector<std::array<std::optional<WeakTensor>, CopyLayout::kStates>>;
  States& states() { return states_; }
  const States& states() const { return states_; }

  /// Each step that changes the memory has a number of its own.
  std::uint64_t version() const { return version_; }
  /// Before this rank writes: on all ranks of the step alike.
  void begin_version();
  /// Nothing was written but by steps that this rank has made. To be asked after what was read.
  bool is_current() const;
  /// What this rank sees is not the state that it counts as its own, for good.
  void mark_torn() { is_torn_ = true; }
  bool is_torn() const { return is_torn_; }

  /// No copy writes to it any more: the ranks of the next generation may go on in it.
  void release() { is_released_ = true; }
  void claim() { is_released_ = false; }
  /// It is released, and this rank sees its own state, which is that of the file.
  bool is_kept() const;

 private:
  // Behind the data, on pages of its own: the version.
  static constexpr std::uint64_t kHeadBytes = 64 * 1024;

  CopyMemory(Files files, StateTypes types, std::uint64_t version, std::uint64_t data_bytes);
  bool sees_the_file() const;
  std::atomic<std::uint64_t>& file_version() const;

  const UniqueFd file_;
  GradientSlots gradients_;
  const std::uint64_t id_;
  const SharedMapping shared_;
  const PrivateMapping own_;
  StateTypes types_;
  States states_;
  std::uint64_t version_;
  bool is_torn_ = false;
  bool is_released_ = false;
};

}  // namespace lockstep::inline internal
