#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/data/epoch_plan.h"
#include "lockstep/recovery/internal/step_recovery.h"
#include "lockstep/recovery/internal/tensor_copies.h"
#include "lockstep/snapshot/state_dict.h"
#include "lockstep/train/accelerator_state.h"

namespace lockstep::inline internal {

/// What an Accelerator has prepared, as StepRecovery recovers it. At each boundary it copies what a
/// step changes before its update: buffers, what is registered, learning rates, the scaler.
/// Parameters and an optimizer's state change only in the optimizer's step: where that is not the
/// last of a step's updates, they are copied before it.
/// Threads: the training thread. Lifetime: `state` must outlive it.
class AcceleratorTraining final : public RecoverableTraining {
 public:
  explicit AcceleratorTraining(AcceleratorState& state) : state_(state) {}

  std::vector<at::Tensor> parameters() override;
  std::int64_t steps_of(const c10::IValue& value) const override;
  c10::IValue value() override;
  void take(const c10::IValue& value) override;
  void remember() override;
  bool go_back() override;
  void drop_group(const ProcessGroup& group) override;
  void set_group(const ProcessGroup& group, bool at_boundary) override;
  std::uint64_t parameters_hash() const override;
  std::int64_t steps() const override { return state_.steps(); }
  std::int64_t place() const override;

  /// As the function of that name, of all that was prepared.
  bool take_out_of_copies();

  /// Around the step of an optimizer.
  void begin_update(AcceleratorState::Stepped& stepped);
  void end_update();
  /// In its place, where the step has thrown.
  void fail_update(const AcceleratorState::Stepped& stepped);
  /// A step may begin: nothing is updated yet.
  void begin_step();
  /// The step goes on over a boundary: the program accumulates gradients itself.
  void extend_step() { is_extended_ = true; }

  /// While it lives, code between two steps runs, which began with the loaders at these cursors; as
  /// a part of other such code it changes nothing.
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
    /// The code counts, also where the group was lost at its very end.
    void note_success() {
      if (is_outermost_) training_.log_until_here();
    }

   private:
    AcceleratorTraining& training_;
    const bool is_outermost_;
  };

  /// All loaders but the first go back to where they were.
  void return_other_loaders(const std::vector<DataCursor>& cursors);
  /// The first loader goes on where this process's state is.
  void move_loader_to_boundary();
  /// Where the first loader is at a boundary.
  void set_cursor(const DataCursor& cursor) { cursor_ = cursor; }

 private:
  struct Watched {
    at::Tensor parameter;
    std::int64_t gradient = kNoGradient;
  };
  /// Of an optimizer, before the first update of a step.
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

  AcceleratorState& state_;
  DataCursor cursor_{};
  std::vector<DataCursor> cursors_;  ///< of all loaders, at the boundary
  std::vector<DataCursor> cursors_between_;
  /// Where the log of samples, which is closed, ends of each loader: before a loop that was
  /// interrupted.
  std::vector<DataCursor> logged_until_;
  /// Of groups that were left. They wait for saves under way, and may only do so once this process
  /// has left its group.
  std::vector<std::map<std::string, SnapshotDirectory>> left_directories_;
  bool has_tensors_ = false;
  std::vector<Watched> parameters_;
  TensorCopies buffers_;
  std::map<std::string, TensorDict> registered_;
  TensorDict scaler_;
  std::vector<double> rates_;
  std::vector<std::int64_t> scheduler_steps_;
  std::int64_t steps_ = 0;
  int updates_ = 0;       ///< of the step under way
  int most_updates_ = 0;  ///< of any step
  std::map<torch::optim::Optimizer*, Undo> undos_;
  int undone_updates_ = 0;  ///< that have an undo
  bool has_undo_ = false;   ///< of the last update
  bool has_warned_of_replicas_ = false;
  bool is_extended_ = false;
  std::int64_t skipped_ = 0;  ///< optimizers whose last step was skipped, a bit each
};

}  // namespace lockstep::inline internal
