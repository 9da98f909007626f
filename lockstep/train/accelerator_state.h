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
#include "lockstep/optim/clip_grad.h"
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
class GatheredState;
class StepRecovery;

/// A prepared model, independent of its type.
class PreparedReplica {
 public:
  PreparedReplica() = default;
  virtual ~PreparedReplica() = default;
  PreparedReplica(const PreparedReplica&) = delete;
  PreparedReplica& operator=(const PreparedReplica&) = delete;

  /// The module that was prepared.
  virtual std::shared_ptr<torch::nn::Module> module() const = 0;
  /// Null where each rank has the whole model.
  virtual ShardedModule* sharded() = 0;
  /// As DistributedDataParallel::backward.
  virtual void backward(const at::Tensor& loss, const WeightedBackwardOptions& options) = 0;
  /// As DistributedDataParallel::zero_grad.
  virtual void zero_grad() = 0;
  /// Gradients stay this rank's own while the returned object lives.
  virtual std::shared_ptr<void> no_sync() = 0;
  /// Norm of the gradients of the last backward pass; if sharded, only where it was measured.
  virtual double gradient_norm() const = 0;
  /// What optimizers take, by the names of the module's parameters, each once.
  TensorDict parameters();
  /// Names of tensors that are not finite; if sharded, on any rank, and collective.
  std::vector<std::string> names_not_finite(const TensorDict& tensors);
  /// Replicates over another group, whose ranks have equal parameters. Collective. With
  /// one_copy_per_machine and `may_share`, ranks that share memory make a new copy; otherwise each
  /// rank keeps its own parameters.
  virtual void replicate_over(const ProcessGroup& group, bool may_share) = 0;
};

/// State that an Accelerator and everything it has prepared share.
/// Threads: call from the training thread.
class AcceleratorState {
 public:
  /// A prepared optimizer.
  struct PreparedOptimizerState {
    torch::optim::Optimizer* optimizer = nullptr;
    bool is_unscaled = false;
    bool was_skipped = false;
    std::uint64_t at_turn = 0;  ///< turn of its last update
    /// Turn of the last call of step(), which may have done nothing.
    std::uint64_t called_at_turn = 0;
    /// A backward pass, perhaps of another optimizer's model, ran since its last step() and
    /// zero_grad().
    bool has_new_gradients = false;
    /// It has stepped since the last step boundary.
    bool has_stepped = false;
    /// The models of which it has parameters.
    std::vector<PreparedReplica*> replicas{};
  };
  /// A prepared scheduler.
  struct PreparedSchedulerState {
    torch::optim::LRScheduler* scheduler = nullptr;
    std::int64_t steps = 0;
  };

  /// `group`: empty to join the job.
  AcceleratorState(AcceleratorOptions options, ProcessGroup group);
  ~AcceleratorState();
  AcceleratorState(const AcceleratorState&) = delete;
  AcceleratorState& operator=(const AcceleratorState&) = delete;

  /// Whether the step is void, or this replacement's loop has not begun: what the program does
  /// before the next step boundary has no effect.
  bool is_discarding() const;
  /// Whether collectives of the program cannot reach the other ranks: is_discarding(), or ranks
  /// failed after the update of the step.
  bool has_lost_group() const;
  /// With kFullyShard, before a forward: while ranks are lost, it uses the copies of shards.
  void choose_parameters();
  /// Whether an error of a collective may belong to a recovery.
  bool can_fail() const { return recovery_ != nullptr; }
  /// Runs `collective`; if ranks fail meanwhile, runs it again with a stand-in for the group.
  template <class Function>
  auto attempt(Function&& collective) {
    // In a replacement before its loop: the other ranks do not take part.
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
  /// Runs `part`, collectives of the step. False: ranks failed meanwhile, and the step is void.
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
  /// Notes that a collective of the program has succeeded. While ranks are missing, its result
  /// lacks their values.
  void note_collective();
  /// In a replacement that has the state and whose loop has not begun, replaces the group by a
  /// stand-in during its life.
  class StandInGuard {
   public:
    explicit StandInGuard(AcceleratorState& state);
    ~StandInGuard();
    StandInGuard(const StandInGuard&) = delete;
    StandInGuard& operator=(const StandInGuard&) = delete;

   private:
    AcceleratorState& state_;
    ProcessGroup group_;  ///< empty: the group was not replaced
  };
  /// Whether this error is one of a recovery, which then begins: the step is void. False: throw it.
  bool fail(const Error& error);
  /// As Accelerator::run_on_survivors.
  bool run_on_survivors(const std::function<void()>& action);
  /// Behind a batch's update, if it has one. False: its step is void. Where ranks hold shards they
  /// leave their copies here, so that the step counts whatever fails behind it. Collective.
  bool complete_step();
  /// As Accelerator::set_while_waiting.
  void set_while_waiting(std::function<void()> while_waiting);
  /// In a replacement: receives the state, before its first loop.
  void arrive();
  /// In a process that joins, before its first loop. True: no rank has a state, and all load the
  /// newest snapshot.
  bool arrive_to_load(const SnapshotDirectory& snapshots);
  /// Ends the training run on all ranks. False: the last step is void and must be replayed.
  /// Collective.
  bool end_training();
  /// Begins the loops over epochs; returns the epoch of the first loader. A replacement first
  /// receives the state.
  /// Errors: UsageError without a prepared loader.
  std::int64_t begin_epochs();
  /// As Accelerator::recoveries.
  std::int64_t recoveries() const;
  /// Whether this process is rank 0; also known while ranks are lost.
  bool is_main() const;
  /// As Accelerator::is_training_over.
  bool is_training_over() const;
  /// This process's rank; also known while ranks are lost.
  int process_index() const;
  /// The number of ranks; also known while ranks are lost.
  int num_processes() const;
  /// Prints a line once, on rank 0, when the next batch is requested; not if the step is void.
  void print(std::string line);

  /// Begins a turn: one of the accumulated batches of a step. Gradients are exchanged in the last.
  void begin_micro_batch();
  /// Ends the turn.
  void end_micro_batch();
  /// As Accelerator::sync_gradients.
  bool sync_gradients() const;

  /// As Accelerator::backward.
  void backward(const at::Tensor& loss, std::optional<double> weight);
  /// Whether PreparedOptimizer::zero_grad() is to clear: false while the step is incomplete.
  bool may_zero_grad(PreparedOptimizerState& stepped);
  /// As PreparedOptimizer::step.
  void step(PreparedOptimizerState& stepped);
  /// As PreparedScheduler::step.
  void step(PreparedSchedulerState& scheduled);
  /// Divides the gradients of each optimizer that has some of these parameters by the loss scale,
  /// once per step.
  void unscale_gradients(const std::vector<at::Tensor>& parameters);
  /// Registers a prepared loader.
  /// Errors: UsageError for one that was made for another number of ranks or shards.
  void add_loader(const std::shared_ptr<LoaderPosition>& loader);
  /// With kFullyShard: in prepared optimizers, this rank's pieces replace the parameters of
  /// prepared models, whichever was prepared first.
  /// Errors: UsageError for an optimizer that needs whole parameters.
  void shard_optimizers();
  /// The same before a backward pass, for parameters that were added to an optimizer since.
  void shard_added_parameters();
  /// The same for a list of parameters.
  std::vector<at::Tensor> own_parts(const std::vector<at::Tensor>& parameters) const;
  /// Whether forward of sharded models computes in float16 or bfloat16, by its mp_policy.
  bool shards_in_half() const;
  /// The ranks that hold different shards of a replica; empty: each holds everything.
  const ProcessGroup& shard_group() const { return shard_group_; }
  /// How norms of gradients are computed.
  ClipGradOptions norm_options(double norm_type) const {
    return {
        .norm_type = norm_type, .process_group = shard_group_, .replicate_group = replicate_group_};
  }
  /// Options for prepared models. Errors: UsageError for options that an accelerator cannot serve.
  FullyShardOptions fully_shard_options() const;
  /// Model and optimizer for a snapshot if no rank holds them whole; otherwise null.
  /// Errors: UsageError for several of them.
  std::unique_ptr<internal::GatheredState> gathered_state() const;
  /// The loader of the innermost loop; null outside of loops.
  const LoaderPosition* current_loader() const;

  /// Whether gradients of an incomplete step exist.
  bool is_accumulating() const;
  /// Whether the ranks have all gradients of the last backward(): where each has a part of them, a
  /// lost rank's are lost.
  bool has_all_gradients() const;
  /// With logical_shards, ranks have different numbers of shards.
  /// Errors: UsageError for a collective before a rank's last shard of a step.
  void check_collective(const char* operation) const;
  /// Errors: UsageError with logical_shards if gradients are not the sum over all shards.
  void check_summed(const char* operation) const;
  /// Errors: UsageError with logical_shards for a parameter whose gradient is not such a sum.
  void check_gradients(const char* operation, const std::vector<at::Tensor>& parameters) const;
  /// Errors: UsageError with logical_shards.
  void refuse_with_shards(const char* operation) const;
  /// The number of logical shards of the next prepared loader.
  /// Errors: UsageError if the program has set another.
  int shards_of_next_loader(int given) const;
  /// With logical_shards: if a loop was left within a step, restores what the step has changed.
  void end_left_step();
  /// Whether the last step was skipped because its gradients were not finite.
  bool was_step_skipped() const;
  /// As Accelerator::scaler.
  const GradScaler& scaler() const { return scaler_; }
  /// Steps of the optimizer that was prepared first.
  std::int64_t steps() const { return steps_; }
  /// Sets them, after a snapshot was loaded or a state received.
  void set_steps(std::int64_t steps) { steps_ = steps; }
  /// The epoch of the first loader; 0 without loaders.
  std::int64_t epoch() const { return loaders.empty() ? 0 : loaders.front()->cursor().epoch; }
  /// As Accelerator::save_and_leave.
  bool save_and_leave();
  /// As Accelerator::leave_training.
  void leave_training();
  /// Options for a snapshot of this step with values().
  SnapshotSaveOptions save_options(c10::IValue values);
  /// All state but the first model and the first optimizer, as plain values for a file.
  c10::IValue values();
  /// Whether a process of this training run saved a snapshot with these values.
  bool is_of_this_training(const c10::IValue& values) const;
  /// Checks values of a snapshot; changes nothing.
  /// Errors: UsageError if other objects were prepared or registered when they were saved.
  void check_values(const c10::IValue& values, const std::string& source) const;
  /// Loads the registered objects, which may refuse what check_values() cannot check. After an
  /// error call give_back_registered().
  /// Errors: UsageError; what a registered object throws.
  void take_registered(const c10::IValue& values, const std::string& source);
  /// Undoes take_registered().
  void give_back_registered();
  /// Loads the rest; cannot fail after check_values().
  void take_values(const c10::IValue& values, const std::string& source);

  /// As Accelerator::training_id.
  const std::string& training_id() const { return training_id_; }

  /// As Accelerator::loss.
  /// Errors: UsageError without logical_shards.
  double loss() const;

  /// Options of the accelerator.
  const AcceleratorOptions& options() const { return options_; }
  /// The current group; a recovery replaces it.
  const ProcessGroup& process_group() const { return group_; }
  /// The dtype of mixed precision; nullopt for float32.
  std::optional<at::ScalarType> autocast_dtype() const { return autocast_dtype_; }

  std::vector<std::shared_ptr<PreparedReplica>> replicas{};
  std::vector<std::shared_ptr<PreparedOptimizerState>> optimizers{};
  std::vector<std::shared_ptr<PreparedSchedulerState>> schedulers{};
  std::vector<std::shared_ptr<LoaderPosition>> loaders{};
  /// An object of Accelerator::register_for_checkpointing.
  struct Registered {
    std::string name;
    std::function<TensorDict()> state_dict;
    std::function<void(const TensorDict&)> load_state_dict;
    /// Throws for values that do not fit. Empty: only loading can tell.
    std::function<void(const TensorDict&)> check = {};
    /// It keeps its state if a snapshot has none for it.
    bool is_optional = false;
  };
  std::vector<Registered> registered{};
  /// By path: each object knows which of its snapshots are complete.
  std::map<std::string, SnapshotDirectory> directories{};

 private:
  /// A loop was left between the batches of a step, which is then discarded.
  bool is_group_left() const { return pass_of_group_ && pass_of_group_->expired(); }
  void end_left_group();
  void exchange_gradients(const at::Tensor& loss, std::optional<double> weight);
  void exchange_shard(const at::Tensor& loss, std::optional<double> weight);
  void note_loss(const at::Tensor& loss);
  void check_saved_shards(const c10::IValue& values, const std::string& source) const;
  void update_scaler();
  /// Replays a scheduler's steps; learning rates stay as the optimizers have them.
  void go_to(PreparedSchedulerState& scheduled, std::int64_t steps);
  /// Whether the optimizer may step.
  bool look_at_gradients(PreparedOptimizerState& stepped);
  bool update(PreparedOptimizerState& stepped, bool is_finite);
  void find_replicas(PreparedOptimizerState& stepped) const;
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
  std::string why_shards_not_recoverable() const;
  GradScaler make_scaler() const;
  void stop_recovering(const std::string& reason);
  bool is_other_loader_in_pass() const;
  bool has_unused_gradients() const;
  void flush_lines();

  const AcceleratorOptions options_;
  ProcessGroup group_;
  ProcessGroup shard_group_{};      ///< with kFullyShard
  ProcessGroup replicate_group_{};  ///< the ranks that hold the same shards; empty: none
  std::unique_ptr<internal::AcceleratorTraining> training_;
  std::unique_ptr<internal::StepRecovery> recovery_;     ///< null: failures are the program's
  std::unique_ptr<internal::AcceleratorShards> shards_;  ///< null: one batch per rank and step
  bool can_recover_ = true;  ///< false: something prepared rules recovery out
  std::vector<std::string> held_lines_{};
  std::optional<at::ScalarType> autocast_dtype_;
  GradScaler scaler_;
  std::shared_ptr<SampleLog> sample_log_;
  bool has_stepped_with_scaler_ = false;

  /// Turns of the step so far; 0: none has begun.
  int turn_of_step_ = 0;
  std::uint64_t turn_ = 0;
  /// While a step is incomplete: the loop that hands out its batches.
  std::optional<std::weak_ptr<void>> pass_of_group_{};
  /// No batch was requested since a step was discarded.
  bool is_given_up_ = false;
  bool sync_gradients_ = true;
  bool has_gradients_ = false;
  std::int64_t recoveries_before_gradients_ = 0;
  int batches_of_step_ = 1;
  /// The step's batches differ in size: losses are weighted by samples.
  bool is_weighted_ = false;
  /// Losses of the step's batches on this rank.
  std::vector<at::Tensor> losses_{};
  bool losses_are_old_ = false;
  std::int64_t steps_ = 0;
  /// Of all prepared optimizers, as they were last sharded.
  std::size_t sharded_parameters_ = 0;
  std::string training_id_;
  /// Registered state by name, before take_registered().
  std::map<std::string, TensorDict> given_up_{};
  TensorDict given_up_scaler_{};
};

}  // namespace internal

}  // namespace lockstep
