#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/data/epoch_plan.h"
#include "lockstep/fully_shard/internal/kept_shards.h"
#include "lockstep/recovery/internal/step_recovery.h"
#include "lockstep/recovery/internal/tensor_copies.h"
#include "lockstep/snapshot/state_dict.h"
#include "lockstep/train/accelerator_state.h"

namespace lockstep::inline internal {

/// The prepared objects of an Accelerator, as StepRecovery recovers them. At each step boundary it
/// copies what a step changes before its update: buffers, registered objects, learning rates, loss
/// scaler. Parameters and optimizer state change only in the optimizer's step; it copies them
/// before every update of a step but the last.
/// Threads: call from the training thread.
/// Lifetime: `state` must outlive it.
class AcceleratorTraining final : public RecoverableTraining {
 public:
  explicit AcceleratorTraining(AcceleratorState& state) : state_(state) {}

  std::vector<at::Tensor> parameters() override;
  std::int64_t steps_of(const c10::IValue& value) const override;
  c10::IValue value() override;
  void take(const c10::IValue& value) override;
  void remember() override;
  bool roll_back() override;
  void drop_group(const ProcessGroup& group) override;
  void set_group(const ProcessGroup& group, bool at_boundary) override;
  std::uint64_t parameters_hash() const override;
  std::int64_t steps() const override { return state_.steps(); }
  std::int64_t place() const override;
  void keep_shards() override;
  bool has_new_shards() const override { return kept_shards_ && kept_shards_->is_outdated(); }
  bool settle_shards() override;

  /// With kFullyShard, before training can be recovered: makes the memory of the shards'
  /// copies. Collective.
  void begin_shards();
  /// Training cannot be recovered any more: frees it.
  void forget_shards() { kept_shards_.reset(); }
  /// While training of shards can be recovered: buffers become those of rank 0, as they are before
  /// each forward, since any rank may be rank 0 from here on. Collective.
  void sync_buffers();
  /// As AcceleratorState::choose_parameters.
  void choose_parameters();

  /// As the function of this name, for everything prepared.
  bool take_out_of_copies();

  /// Call it before an optimizer's step.
  void begin_update(AcceleratorState::PreparedOptimizerState& stepped);
  /// Call it after an optimizer's step.
  void end_update();
  /// Call it instead of end_update() if the step has thrown.
  void fail_update(const AcceleratorState::PreparedOptimizerState& stepped);
  /// Begins a step: nothing is updated yet.
  void begin_step();
  /// Extends the step over a boundary, since the program accumulates gradients itself.
  void extend_step() { is_extended_ = true; }

  /// Marks code between two steps during its life; the loaders began at these cursors. Nested ones
  /// have no effect.
  class Between {
   public:
    Between(AcceleratorTraining& training, const std::vector<DataCursor>& cursors)
        : training_(training), is_outermost_(training.cursors_between_.empty()) {
      if (is_outermost_) training_.cursors_between_ = cursors;
    }
    ~Between() {
      if (is_outermost_) training_.cursors_between_.clear();
    }
    Between(const Between&) = delete;
    Between& operator=(const Between&) = delete;
    /// Marks the code as successful, even if the group was lost at its end.
    void note_success() {
      if (is_outermost_) training_.log_until_here();
    }

   private:
    AcceleratorTraining& training_;
    const bool is_outermost_;
  };

  /// Moves all loaders but the first back to these cursors.
  void return_other_loaders(const std::vector<DataCursor>& cursors);
  /// Moves the first loader to the position of this process's state.
  void move_loader_to_boundary();
  /// Position of the first loader at a boundary.
  void set_cursor(const DataCursor& cursor) { cursor_ = cursor; }

 private:
  struct Watched {
    at::Tensor parameter;
    std::int64_t gradient = kNoGradient;
  };
  /// State of an optimizer before the first update of a step.
  struct Undo {
    std::vector<at::Tensor> parameters;
    c10::IValue optimizer;
  };
  void find_tensors();
  std::vector<at::Tensor> found_parameters() const;
  void log_until_here();
  void forget_updates();
  int expected_updates() const;
  void restore_rates();
  void forget_scaler();
  std::int64_t skipped() const;
  void set_skipped(std::int64_t skipped);
  void prepare_copies();
  void warn_of_replicas();
  ShardedModule* sharded() const;
  KeptShards& kept_shards();
  void use_scaler_of_group();
  TensorDict tensors_of_model() const;

  AcceleratorState& state_;
  DataCursor cursor_{};
  DataCursor remembered_cursor_{};
  std::vector<DataCursor> cursors_;  ///< of all loaders, at the last boundary
  std::vector<DataCursor> cursors_between_;
  /// By loader: where its closed sample log ends, before an interrupted loop.
  std::vector<DataCursor> logged_until_;
  /// Of earlier groups. Their destructors wait for asynchronous saves, which is only allowed after
  /// this process has left its group.
  std::vector<std::map<std::string, SnapshotDirectory>> left_directories_;
  bool has_tensors_ = false;
  std::vector<Watched> parameters_;
  TensorCopies buffers_;
  std::map<std::string, TensorDict> registered_;
  TensorDict scaler_;
  std::vector<double> rates_;
  std::vector<std::int64_t> scheduler_steps_;
  std::int64_t steps_ = 0;
  int updates_ = 0;       ///< in the current step
  int most_updates_ = 0;  ///< maximum over steps
  std::map<torch::optim::Optimizer*, Undo> undos_;
  int undone_updates_ = 0;  ///< updates of the step that can be undone
  bool has_undo_ = false;   ///< whether the last update can be undone
  bool has_warned_of_replicas_ = false;
  bool is_extended_ = false;
  std::unique_ptr<KeptShards> kept_shards_;  ///< with kFullyShard
  std::int64_t skipped_ = 0;  ///< bit mask of optimizers that skipped their last step
};

}  // namespace lockstep::inline internal
