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

#include "lockstep/base/internal/mutex.h"
#include "lockstep/one_copy/internal/copy_layout.h"
#include "lockstep/one_copy/internal/gradient_slots.h"
#include "lockstep/one_copy/internal/past_values.h"
#include "lockstep/os/memory/frozen_memory.h"
#include "lockstep/os/memory/memory_file.h"
#include "lockstep/os/memory/private_mapping.h"

namespace lockstep::inline internal {

/// The memory file with parameters and optimizer state of one model, as this process maps it:
/// shared, for updating a rank's shard, and copied on write, for the program; and the ranks'
/// gradients. No rank owns it: ranks of a later generation continue with it (KeptMemory).
/// A save can freeze it between two steps: then steps keep what they overwrite until it is saved.
/// Threads: any for mappings, and for what freeze() returns; else one at a time.
/// Lifetime: tensors in it keep it alive; the file exists while any process has it.
/// Errors: SystemError.
class CopyMemory : public FreezableMemory, public std::enable_shared_from_this<CopyMemory> {
 public:
  /// By parameter: dtype of each state in the memory.
  using StateTypes = std::vector<std::array<std::optional<c10::ScalarType>, CopyLayout::kStates>>;

  /// The files of the memory.
  struct Files {
    UniqueFd data;
    UniqueFd gradients;
    UniqueFd past;
  };
  static constexpr std::size_t kFiles = 3;
  static Files make_files(const std::string& name, std::uint64_t data_bytes);
  /// `version`: that of the state that this rank regards as its own.
  static std::shared_ptr<CopyMemory> map(Files files, StateTypes types, std::uint64_t version);
  /// The memory whose copy-on-write mapping contains this address; null: none.
  static std::shared_ptr<CopyMemory> find(const void* address);
  ~CopyMemory() override;

  const SharedMapping& shared() const { return shared_; }
  const PrivateMapping& own() const { return own_; }
  std::uint64_t data_bytes() const { return shared_.bytes() - kHeadBytes; }
  GradientSlots& gradients() { return gradients_; }
  /// Gives the ranks of the group their slots. Collective.
  /// Errors: as GradientSlots::assign().
  void assign_slots(const ProcessGroup& group);
  /// As in Files.
  std::array<int, kFiles> files() const { return {file_.get(), gradients_.file(), past_.file()}; }
  /// Id of the file, equal in all processes.
  std::uint64_t id() const { return id_; }
  StateTypes& types() { return types_; }
  const StateTypes& types() const { return types_; }

  /// By parameter: the last states of this rank's optimizers there. Weak, because states keep the
  /// memory alive.
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl>;
  using States = std::vector<std::array<std::optional<WeakTensor>, CopyLayout::kStates>>;
  States& states() { return states_; }
  const States& states() const { return states_; }

  /// Number of the last step that changed the memory.
  std::uint64_t version() const { return version_; }
  /// Call it before this rank writes, equally on all ranks of the step.
  void begin_version();
  /// Call it before this rank overwrites a range of the shared mapping.
  void before_write(std::uint64_t offset, std::uint64_t bytes) noexcept {
    past_.keep(shared_.data(), offset, bytes);
  }
  /// Whether only steps that this rank has made were written. Call it after reading.
  bool is_current() const;
  /// What this rank sees is, permanently, not the state that it regards as its own.
  void mark_torn() { is_torn_ = true; }
  bool is_torn() const { return is_torn_; }

  /// No copy writes to it any more: the ranks of the next generation may continue with it.
  void release() { is_released_ = true; }
  void claim() { is_released_ = false; }
  /// It is released, and this rank sees its own state, which is the file's.
  bool is_kept() const;

  /// What this rank sees now. The memory of an unfinished step cannot be frozen, nor can one of
  /// which another rank saves an earlier state.
  std::shared_ptr<const FrozenMemory> freeze() override;

 private:
  class Frozen;
  // After the data, on separate pages: the version.
  static constexpr std::uint64_t kHeadBytes = 64 * 1024;

  CopyMemory(Files files, StateTypes types, std::uint64_t version, std::uint64_t data_bytes);
  bool sees_the_file() const;
  bool hold_version();
  void let_go_of_version() noexcept;
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
  PastValues past_;
  Mutex mutex_;
  /// Saves of this process that are not written yet, all of one version.
  int holds_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::uint64_t held_version_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::size_t held_slot_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::inline internal
