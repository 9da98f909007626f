#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/loader_position.h"
#include "lockstep/ddp/replica.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/train/accelerator_options.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class LRScheduler;
class Optimizer;
}  // namespace torch::optim

namespace lockstep {

inline namespace internal {
class AcceleratorShards;
class AcceleratorTraining;
class StepRecovery;
}  // namespace internal

/// A model that was prepared, whatever its type.
class PreparedReplica {
 public:
  PreparedReplica() = default;
  virtual ~PreparedReplica() = default;
  PreparedReplica(const PreparedReplica&) = delete;
  PreparedReplica& operator=(const PreparedReplica&) = delete;

  virtual std::shared_ptr<torch::nn::Module> module() const = 0;
  virtual void backward(const at::Tensor& loss, const WeightedBackwardOptions& options) = 0;
  virtual void zero_grad() = 0;
  virtual std::unique_ptr<NoSyncGuard> no_sync() = 0;
  virtual double gradient_norm() const = 0;
  /// Replicates over another group, whose ranks have the same parameters. Collective. With
  /// one_copy_per_machine the ranks make another copy `at_boundary`, where they all share memory;
  /// elsewhere no step is made, and each keeps the parameters that it has.
  virtual void replicate_over(const ProcessGroup& group, bool at_boundary) = 0;
};

/// What an Accelerator and all that it has prepared share. Threads: the training thread.
class AcceleratorState {
 public:
  /// What it knows of an optimizer.
  struct Stepped {
    torch::optim::Optimizer* optimizer = nullptr;
    bool is_unscaled = false;
    bool was_skipped = false;
    std::uint64_t at_turn = 0;         ///< of its last step
    std::uint64_t called_at_turn = 0;  ///< of the last call of step(), which may do nothing
    /// Since its last step and zero_grad() there was a backward pass, which may be another's.
    bool has_new_gradients = false;
    /// It has stepped since the last boundary.
    bool has_stepped = false;
    /// Those of whose parameters it has some.
    std::vector<const PreparedReplica*> replicas{};
  };
  struct Scheduled {
    torch::optim::LRScheduler* scheduler = nullptr;
    std::int64_t steps = 0;
  };

  /// `group` empty: it joins the job.
  AcceleratorState(AcceleratorOptions options, ProcessGroup group);
  ~AcceleratorState();
  AcceleratorState(const AcceleratorState&) = delete;
  AcceleratorState& operator=(const AcceleratorState&) = delete;

  /// Recovery from the failure of ranks; all of it works without.
  /// Collectives of the step reach nobody, and nothing of it counts.
  bool is_discarding() const;
  bool has_lost_group() const;
  /// Errors of collectives may be the recovery's.
  bool can_fail() const { return recovery_ != nullptr; }
  /// `collective`, or where ranks are lost meanwhile, the same with a stand-in for the group.
  template <class Function>
  auto attempt(Function&& collective) {
    // The others are in their loops.
    const StandInGuard before_loop(*this);
    try {
      auto result = collective();
      note_collective();
      return result;
    } catch (const Error& error) {
      if (!fail(error)) throw;
      return collective();
    }
  }
  /// `part`, collectives of the step; where ranks are lost meanwhile, the step does not count.
  /// False: it was not run to its end.
  template <class Function>
  bool attempt_in_step(Function&& part) {
    try {
      part();
      return true;
    } catch (const Error& error) {
      if (!fail(error)) throw;
      return false;
    }
  }
  void note_collective();
  /// In a new process that has the state, and whose loop has not begun, a stand-in takes the place
  /// of the group while it lives.
  class StandInGuard {
   public:
    explicit StandInGuard(AcceleratorState& state);
    ~StandInGuard();
    StandInGuard(const StandInGuard&) = delete;
    StandInGuard& operator=(const StandInGuard&) = delete;

   private:
    AcceleratorState& state_;
    ProcessGroup group_;  ///< empty: the state has its own
  };
  bool fail(const Error& error);
  /// As StepRecovery::run_on_survivors().
  bool run_on_survivors(const std::function<void()>& action);
  void set_while_waiting(std::function<void()> while_waiting);
  /// In a new process takes the state, before its first loop.
  void arrive();
  /// In a process that joins. True: no rank has a state, and all load the newest snapshot.
  bool arrive_to_load(const SnapshotDirectory& snapshots);
  /// The training is over on all ranks: true. False: the step before did not count, and comes
  /// again. Collective.
  bool end_training();
  /// Before the loops over loaders: of the first loader. In a new process it takes the state.
  std::int64_t begin_epochs();
  std::int64_t recoveries() const;
  bool is_main() const;
  /// The training has ended without this process, which replaces one that failed at its end.
  bool is_training_over() const;
  int process_index() const;
  int num_processes() const;
  /// Prints a line on rank 0, once, where the step is not void in the end.
  void print(std::string line);

  /// One batch of a step's; the gradients travel in the last.
  void begin_turn();
  void end_turn();
  bool sync_gradients() const;

  void backward(const at::Tensor& loss, std::optional<double> weight);
  bool may_zero_grad(Stepped& stepped);
  void step(Stepped& stepped);
  void step(Scheduled& scheduled);
  /// Of all optimizers that have some of these parameters, where gradients are scaled.
  void unscale_gradients(const std::vector<at::Tensor>& parameters);
  /// Errors: UsageError for one that was made for another number of ranks.
  void add_loader(const std::shared_ptr<LoaderPosition>& loader);
  /// The innermost loop over a prepared loader; null where there is none.
  const LoaderPosition* current_loader() const;

  /// Whether some gradients of a step that is not complete are there.
  bool is_accumulating() const;
  /// With logical_shards ranks have different numbers of shards.
  /// Errors: UsageError for a collective before a step's last one.
  void check_collective(const char* operation) const;
  /// Errors: UsageError where gradients are not those of all shards.
  void check_summed(const char* operation) const;
  /// Errors: UsageError with logical_shards.
  void refuse_with_shards(const char* operation) const;
  /// For the next loader that is prepared. Errors: UsageError where the program has set another.
  int shards_of_next_loader(int given) const;
  /// What a loop that was left within a step has changed is as before the step.
  void end_left_step();
  /// The last step was left out, for gradients that are not finite.
  bool was_step_skipped() const;
  const GradScaler& scaler() const { return scaler_; }
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  /// Of the first loader.
  std::int64_t epoch() const { return loaders.empty() ? 0 : loaders.front()->cursor().epoch; }
  /// As those of Accelerator.
  bool save_and_leave();
  void leave_training();
  /// For a snapshot of this step, with values().
  SaveOptions save_options(c10::IValue values);
  /// All but the first model and optimizer, as files can hold it.
  c10::IValue values();
  /// Whether a snapshot with these values was saved by this training, in whatever process.
  bool is_of_this_training(const c10::IValue& values) const;
  /// Changes nothing. Errors: UsageError where something else was prepared or registered when they
  /// were saved.
  void check_values(const c10::IValue& values, const std::string& source) const;
  /// What was registered, which may refuse values that check_values() cannot judge: those before
  /// them are then as they were. Errors: UsageError; what a registered object throws.
  void take_registered(const c10::IValue& values, const std::string& source);
  /// All as it was before take_registered().
  void give_back_registered();
  /// The rest, which cannot fail.
  void take_values(const c10::IValue& values, const std::string& source);

  /// Of the training, in all of its runs.
  const std::string& training_id() const { return training_id_; }

  /// As Accelerator::loss(). Errors: UsageError without logical_shards.
  double loss() const;

  const AcceleratorOptions& options() const { return options_; }
  const ProcessGroup& group() const { return group_; }
  std::optional<at::ScalarType> autocast_dtype() const { return autocast_dtype_; }

  std::vector<std::shared_ptr<PreparedReplica>> replicas{};
  std::vector<std::shared_ptr<Stepped>> optimizers{};
  std::vector<std::shared_ptr<Scheduled>> schedulers{};
  std::vector<std::shared_ptr<LoaderPosition>> loaders{};
  struct Registered {
    std::string name;
    std::function<TensorDict()> state_dict;
    std::function<void(const TensorDict&)> load_state_dict;
    /// Empty where only loading shows whether values fit.
    std::function<void(const TensorDict&)> check = {};
    /// Stays as it is where a snapshot does not have it.
    bool is_optional = false;
  };
  std::vector<Registered> registered{};
  /// By folder: each knows which of its snapshots are whole.
  std::map<std::string, SnapshotDirectory> directories{};

 private:
  /// The loop over a loader was left between batches of a step, which then is none.
  bool is_group_left() const { return pass_of_group_ && pass_of_group_->expired(); }
  void end_left_group();
  void exchange_gradients(const at::Tensor& loss, std::optional<double> weight);
  void exchange_shard(const at::Tensor& loss, std::optional<double> weight);
  void note_loss(const at::Tensor& loss);
  void check_saved_shards(const c10::IValue& values, const std::string& source) const;
  void update_scaler();
  /// Whether the optimizers may step.
  /// As if it had made so many; learning rates stay, which come with the optimizers.
  void go_to(Scheduled& scheduled, std::int64_t steps);
  bool look_at_gradients(Stepped& stepped);
  bool update(Stepped& stepped, bool is_finite);
  void find_replicas(Stepped& stepped) const;
  bool look_at_losses() const;
  bool judge(const std::string& text) const;
  std::vector<std::string> ranks_with_bad_loss() const;
  double nominal_weight(const LoaderPosition& loader) const;
  std::string describe_non_finite(const std::vector<std::string>& ranks) const;
  void check_optimizers() const;
  void check_batches(const LoaderPosition* loader, std::optional<double> weight) const;
  void plan_step(int most_batches);

  friend class internal::AcceleratorShards;
  friend class internal::AcceleratorTraining;
  void join();
  void open_sample_log();
  void visit_boundary(LoaderBoundary boundary);
  std::string why_not_recoverable() const;
  void stop_recovering(const std::string& reason);
  bool is_other_loader_in_pass() const;
  bool has_unused_gradients() const;
  void flush_lines();

  const AcceleratorOptions options_;
  ProcessGroup group_;
  std::unique_ptr<internal::AcceleratorTraining> training_;
  std::unique_ptr<internal::StepRecovery> recovery_;     ///< null: failures are the program's
  std::unique_ptr<internal::AcceleratorShards> shards_;  ///< null: a rank has one batch a step
  bool can_recover_ = true;                              ///< as far as is known
  std::vector<std::string> held_lines_{};
  std::optional<at::ScalarType> autocast_dtype_;
  GradScaler scaler_;
  std::shared_ptr<SampleLog> sample_log_;
  bool has_stepped_with_scaler_ = false;

  /// Of the turns of a step, the last one's number; 0: none has begun.
  int turn_of_step_ = 0;
  std::uint64_t turn_ = 0;
  /// Of a step that is not complete: the loop that its batches are of.
  std::optional<std::weak_ptr<void>> pass_of_group_{};
  /// No batch has come since such a step was given up.
  bool is_given_up_ = false;
  bool sync_gradients_ = true;
  bool has_gradients_ = false;
  int batches_of_step_ = 1;
  /// They differ: they count by their samples.
  bool is_weighted_ = false;
  /// Of the step's batches on this rank.
  std::vector<at::Tensor> losses_{};
  bool losses_are_old_ = false;
  std::int64_t steps_ = 0;
  std::string training_id_;
  /// By name, before values were taken.
  std::map<std::string, TensorDict> given_up_{};
  TensorDict given_up_scaler_{};
};

}  // namespace lockstep
