#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/fully_shard/internal/full_state.h"
#include "lockstep/fully_shard/internal/shard_slots.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline internal {

/// The shards of a module's parameters and of its optimizer's state, of all ranks, as copies in
/// memory that the ranks of one machine map (ShardSlots): those of a rank that is lost remain, and
/// any number of ranks continues from them. Elements lie there as in the flat tensors of a single
/// rank, so each rank reads its shard whichever ranks have written it.
///
/// keep() leaves a copy of this rank's shard: a new version of the state. The ranks of a later
/// generation agree on a version, and regroup() gives each its shard of it.
/// Threads: the training thread.
/// Lifetime: refers to units and optimizer; tensors of values() keep the memory alive.
/// Errors: SystemError if memory is short; as Work::wait.
class KeptShards {
 public:
  KeptShards(ShardedUnits& units, torch::optim::Optimizer& optimizer);

  /// Makes new memory, with the shards as they are. Collective.
  void begin(const ProcessGroup& group);
  /// Leaves a copy of this rank's shard. When it returns, all ranks have done so: the next version
  /// is the state. Collective.
  void keep();
  /// Call it after keep() has failed. Returns whether all ranks have left their copies all the
  /// same; then the next version is the state.
  bool settle();

  /// Whether parameters were written to since keep(), as their version counters tell.
  bool is_outdated() const;

  /// Whether this process has the memory.
  bool exists() const { return slots_ != nullptr; }
  /// The version of the state; 0: there is none.
  std::int64_t version() const { return version_; }
  /// go_back() returns to the version of this moment, of which later ones leave the copies.
  void remember() { remembered_ = version_; }
  /// Returns false if there is no copy of it any more.
  bool go_back();

  /// What another rank needs beside the memory: the optimizer's state without tensors of elements.
  c10::IValue rest() const;
  /// Replaces version and rest, on a rank that regroup() gives the memory.
  void take(std::int64_t version, const c10::IValue& rest);

  /// Shards the module over another group, whose ranks have the same version; each gets its shard
  /// from the memory, which ranks without it receive. `is_final`: no rank has, or will need,
  /// another version. Collective.
  /// Errors: Error on all ranks if none has the memory, or if they are on several machines.
  void regroup(const ProcessGroup& group, bool is_final);

  /// Parameters of all ranks, in the memory: a flat tensor that must not be written to.
  at::Tensor values(const FlatParameter& flat) const;

 private:
  void share(const ProcessGroup& group);
  void write(std::int64_t version);
  void note_versions();
  c10::IValue write_optimizer(const c10::IValue& optimizer);
  void copy(std::size_t flat, std::size_t field, std::size_t member, const at::Tensor& piece);
  void read_optimizer();
  at::Tensor kept_tensor(int slot, std::size_t flat, std::size_t field, at::ScalarType dtype) const;
  std::uint64_t offset_of(std::size_t flat, std::size_t field) const;
  std::size_t number_of(const FlatParameter* flat) const;
  std::vector<const ShardedMembers::Place*> places_of_optimizer() const;

  ShardedUnits& units_;
  torch::optim::Optimizer& optimizer_;
  const ShardedMembers members_;
  const std::set<std::string> numbers_;  ///< of a parameter as a whole
  std::vector<FlatParameter*> flats_;
  std::vector<std::uint64_t> offsets_;  ///< of each flat tensor in a slot; then the slot's bytes
  ProcessGroup group_;
  std::shared_ptr<ShardSlots> slots_;
  int written_slot_ = 0;  ///< by the last keep()
  std::vector<std::int64_t> written_versions_;
  /// What this rank has allocated: slot, flat tensor and field.
  std::set<std::tuple<int, std::size_t, std::size_t>> populated_;
  std::int64_t version_ = 0;
  std::int64_t remembered_ = 0;
  /// By version: the optimizer's states without tensors of elements.
  std::vector<std::pair<std::int64_t, c10::IValue>> rests_;
};

}  // namespace lockstep::inline internal
