#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <torch/data/dataloader.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/train/accelerator_options.h"
#include "lockstep/train/accelerator_state.h"
#include "lockstep/train/prepared.h"

namespace lockstep {

inline namespace internal {
class TrainerLoop;
}

/// One of the batches whose gradients accumulate for one step; see Accelerator::accumulate.
class [[nodiscard]] AccumulateGuard {
 public:
  explicit AccumulateGuard(std::shared_ptr<AcceleratorState> state);
  ~AccumulateGuard();
  AccumulateGuard(const AccumulateGuard&) = delete;
  AccumulateGuard& operator=(const AccumulateGuard&) = delete;

 private:
  std::shared_ptr<AcceleratorState> state_;
  std::vector<std::shared_ptr<void>> local_;
};

/// Runs the program's own training loop on any number of processes without a change. Follows
/// Hugging Face's accelerate.Accelerator.
///
/// ```cpp
/// lockstep::Accelerator accelerator;
/// auto [model, optimizer, loader] = accelerator.prepare(net, adam, std::move(data));
/// for (auto& batch : loader) {
///   optimizer.zero_grad();
///   auto loss = torch::cross_entropy_loss(model.forward(batch.data), batch.target);
///   accelerator.backward(loss);
///   optimizer.step();
/// }
/// ```
///
/// Under `lockstep run` (or torchrun, srun, mpirun) each process is a rank; without a launcher
/// there is one rank. Each loss must be the mean over its batch's samples; then gradients are the
/// mean over all samples of the step, however these are divided among ranks and accumulated
/// batches.
///
/// Under `lockstep run --max-restarts=N` a failed rank costs only the step in flight. On the
/// survivors its collectives return without an exception, and the step is void: optimizers,
/// schedulers and print() do nothing. At the next batch a replacement receives the state, and the
/// loader repeats the batch. This needs a prepared optimizer and a loop over epochs(). Recovery is
/// off, so that a failed rank restarts all ranks, with a comm hook, a ShardedOptimizer or nccl, and
/// when two loops over prepared loaders run at once. docs/accelerator.md says what the program must
/// register.
///
/// With Strategy::kFullyShard each rank holds a shard of the model: prepare() takes the parameters'
/// memory from the module, and gives a prepared optimizer this rank's pieces of them. Recovery
/// needs all ranks on one machine: each leaves a copy of its shard there in each step. Else all
/// ranks restart from the newest snapshot.
///
/// Threads: call from the training thread; one accelerator at a time.
/// Lifetime: objects passed to prepare() by reference must outlive it. What prepare() returns may
/// outlive it, together with the group.
/// Errors: UsageError for invalid options; as init_process_group.
class Accelerator {
 public:
  /// Joins the job unless the program has done so.
  explicit Accelerator(const AcceleratorOptions& options = {});
  /// Leaves the job if the constructor has joined it.
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  /// Prepares each object for training on all ranks, and returns the prepared ones in the same
  /// order. An object is a model (a holder, a shared_ptr or a module), an optimizer, a learning
  /// rate scheduler or a data loader. The given model and optimizer stay usable by themselves.
  /// Collective.
  template <class... Objects>
  requires(sizeof...(Objects) > 1) auto prepare(Objects&&... objects) {
    return std::tuple{prepare(std::forward<Objects>(objects))...};
  }

  template <std::derived_from<torch::nn::Module> Module>
  auto prepare(const std::shared_ptr<Module>& module) {
    module->to(device());
    return PreparedModel<Module>(module, state_, ddp_options());
  }
  template <ModuleHolder Holder>
  auto prepare(const Holder& holder) {
    return prepare(holder.ptr());
  }
  template <std::derived_from<torch::nn::Module> Module>
  auto prepare(Module& module) {
    return prepare(std::shared_ptr<Module>(std::shared_ptr<void>(), &module));
  }
  template <std::derived_from<torch::optim::Optimizer> Optimizer>
  auto prepare(Optimizer& optimizer) {
    return PreparedOptimizer<Optimizer>(optimizer, state_);
  }
  template <std::derived_from<torch::optim::LRScheduler> Scheduler>
  auto prepare(Scheduler& scheduler) {
    return PreparedScheduler<Scheduler>(scheduler, state_);
  }
  /// Takes the dataset out of LibTorch's loader, which must have a RandomSampler or
  /// SequentialSampler, and makes a loader that divides the samples among the ranks.
  /// Errors: UsageError for a loader with workers, which own the dataset: use make_data_loader.
  template <class Dataset, class Sampler>
  auto prepare(std::unique_ptr<torch::data::StatelessDataLoader<Dataset, Sampler>> loader) {
    TakenDataset<Dataset> taken = take_dataset(*loader);
    return make_data_loader(std::move(taken.dataset), taken.options);
  }
  template <class Dataset>
  auto prepare(DataLoader<Dataset> loader) {
    state_->add_loader(loader.position());
    return loader;
  }

  /// Makes and prepares a loader that divides a dataset among the ranks. It overrides the options
  /// process_group, device and seed; and split_batches if the accelerator has that option.
  template <class Dataset>
  auto make_data_loader(Dataset dataset, DataLoaderOptions options) {
    options.process_group = process_group();
    options.device = device();
    options.seed = this->options().seed;
    options.split_batches = options.split_batches || this->options().split_batches;
    options.logical_shards = state_->shards_of_next_loader(options.logical_shards);
    return prepare(DataLoader<Dataset>(std::move(dataset), options));
  }

  /// Call it in place of loss.backward(). `loss` is the mean over its batch's samples, or, with a
  /// weight, over that many tokens or other items: see DistributedDataParallel::backward. Pass a
  /// weight in all calls of a step on all ranks, or in none.
  /// Errors: UsageError for several models together with a weight or with batches of different
  /// sizes, since it is unclear whose gradients the loss weighs: call model.ddp().backward(). Else
  /// as Work::wait.
  void backward(const at::Tensor& loss) { state_->backward(loss, std::nullopt); }
  void backward(const at::Tensor& loss, double weight) { state_->backward(loss, weight); }

  /// Accumulates gradients: while the guard lives, the program works on one of
  /// gradient_accumulation_steps batches of a step. Gradients are exchanged, and optimizers and
  /// schedulers step, in the last of these batches, or in the last batch of the epoch.
  ///
  /// ```cpp
  /// for (auto& batch : loader) {
  ///   const auto accumulating = accelerator.accumulate();
  ///   …  // the loop's body as before
  /// }
  /// ```
  AccumulateGuard accumulate() { return AccumulateGuard(state_); }
  /// Whether this batch completes the step; with logical_shards, whether this shard does.
  bool sync_gradients() const { return state_->sync_gradients(); }
  /// Gradients are not exchanged while the guard lives.
  /// Errors: UsageError with logical_shards.
  template <class Module>
  [[nodiscard]] NoSyncGuard no_sync(const PreparedModel<Module>& model) {
    state_->refuse_with_shards("no_sync");
    return model.ddp().no_sync();
  }

  /// The accelerator's precision, for computations outside of prepared models.
  [[nodiscard]] Autocast autocast() const;

  /// Parameters and buffers of a module that is prepared, by their names, as state_dict(). With
  /// Strategy::kFullyShard gathered, on rank 0, and empty on the others; collective then.
  TensorDict get_state_dict(const torch::nn::Module& module) const;

  /// As lockstep::get_total_norm, of the gradients as they are. With Strategy::kFullyShard or
  /// one_copy_per_machine collective, and NaN if a rank was lost since backward(), and with it its
  /// gradients. With logical_shards 0 until the step's gradients are summed.
  double get_total_norm(const std::vector<at::Tensor>& parameters) const;
  /// As lockstep::clip_grad_norm_, on unscaled gradients, when the step is complete; returns the
  /// norm. Otherwise does nothing and returns 0.
  double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                         double norm_type = 2.0);
  /// As lockstep::clip_grad_value_, on unscaled gradients, when the step is complete. Otherwise
  /// does nothing.
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

  /// Concatenates the tensors of all ranks along dimension 0, in the order of ranks. A tensor
  /// without dimensions is taken as [1]. Collective.
  /// Errors: UsageError if shapes or dtypes differ; as Work::wait.
  at::Tensor gather(const at::Tensor& tensor) const;
  /// As gather, for a tensor with one row per sample of the current batch of a prepared loader.
  /// Returns each sample once, in the order of the dataset, or of its shuffle.
  /// Errors: UsageError for another number of rows; as Work::wait.
  at::Tensor gather_for_metrics(const at::Tensor& tensor) const;
  /// Returns the sum over all ranks, or another reduction, as a new tensor. Collective.
  at::Tensor reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) const;
  /// Waits until all ranks are here. Collective.
  void wait_for_everyone() const;

  /// Runs `body`, code between two steps with collectives, such as an evaluation over a prepared
  /// loader, and returns its result. If a rank fails meanwhile, the survivors run it again from the
  /// start, so that the result covers all samples; keep its sums inside. In a void step it does not
  /// run and returns NaN (floating-point numbers, tensors) or an empty result. Collective.
  /// Errors: what `body` throws.
  template <std::invocable Body>
  auto evaluate(const Body& body) {
    using Result = std::invoke_result_t<const Body&>;
    static_assert(!std::is_void_v<Result>, "return what the evaluation found");
    std::optional<Result> result;
    if (state_->run_on_survivors([&] { result.emplace(body()); })) return std::move(*result);
    if constexpr (std::is_floating_point_v<Result>) {
      return std::numeric_limits<Result>::quiet_NaN();
    } else if constexpr (std::is_same_v<Result, at::Tensor>) {
      return at::Tensor(at::full({}, std::numeric_limits<double>::quiet_NaN()));
    } else {
      return Result{};
    }
  }

  /// The epochs that are left of `count`. A resumed process or a replacement starts at the epoch of
  /// the recovered state. At the end it ends the training run on all ranks.
  ///
  /// ```cpp
  /// for (const std::int64_t epoch : accelerator.epochs(10)) {
  ///   for (auto& batch : loader) …
  /// }
  /// ```
  class Epochs {
   public:
    /// Iterates over epoch numbers.
    class Iterator {
     public:
      Iterator(AcceleratorState* state, std::int64_t end);
      std::int64_t operator*() const { return epoch_; }
      Iterator& operator++();
      bool operator==(std::default_sentinel_t) const { return epoch_ >= end_; }

     private:
      void end_if_reached();
      AcceleratorState* state_;
      std::int64_t end_;
      std::int64_t epoch_;
      std::int64_t recoveries_;
    };
    Epochs(std::shared_ptr<AcceleratorState> state, std::int64_t count)
        : state_(std::move(state)), count_(count) {}
    Iterator begin() const { return {state_.get(), count_}; }
    std::default_sentinel_t end() const { return {}; }

   private:
    std::shared_ptr<AcceleratorState> state_;
    std::int64_t count_;
  };
  /// The epochs to train, from 0 to count - 1; see Epochs.
  Epochs epochs(std::int64_t count) const { return {state_, count}; }

  /// Runs `action`, code between two steps with collectives; if a rank fails meanwhile, the
  /// survivors run it again. In a void step it does not run, and false is returned.
  bool run_on_survivors(const std::function<void()>& action) {
    return state_->run_on_survivors(action);
  }
  /// Whether the training run has ended without this process, which replaces a rank that failed at
  /// its end. Loops over the loader then return no batches.
  bool is_training_over() const { return state_->is_training_over(); }
  /// Whether ranks failed, so that the current step is void.
  bool is_step_void() const { return state_->is_discarding(); }
  /// Sets a function that is called while this process waits in a recovery; what it throws ends the
  /// wait.
  void set_while_waiting(std::function<void()> while_waiting) {
    state_->set_while_waiting(std::move(while_waiting));
  }
  /// For the function of set_while_waiting(), in a preempted process: writes a snapshot into
  /// AcceleratorOptions::directory without the other ranks, and ends the training run in this
  /// process. Then throw, and exit with kExitPreempted. Other survivors may do the same. False:
  /// this process does not hold the complete state of a step. Parameters are saved as they are: if
  /// an evaluation has replaced them, restore them first. With Strategy::kFullyShard it writes
  /// nothing, and returns true only if the job goes on without this rank: others have a copy of its
  /// shard.
  /// Errors: as SnapshotDirectory::save.
  bool save_and_leave();
  /// Ends the training run in this process before its end, after the ranks were preempted and have
  /// saved. Recovery is off, and no rank takes this state for the final one.
  void leave_training();

  /// Ends the training run: waits until all ranks are here, since before that a rank may need the
  /// state of another. epochs() calls it at its end; call it after a loop of another form.
  /// Collective.
  /// Errors: Error if the loop was left in a void step.
  void end_training();
  /// As end_training(), but returns false if the last step is void: loop again to replay it.
  [[nodiscard]] bool try_end_training();

  /// Prints a line to standard output, once per job; not in a void step.
  template <class... Parts>
  void print(const Parts&... parts) const {
    std::ostringstream line;
    (line << ... << parts);
    state_->print(line.str());
  }
  /// Whether this is rank 0.
  bool is_main_process() const { return state_->is_main(); }
  /// Whether this is local rank 0 of its machine.
  bool is_local_main_process() const { return local_process_index() == 0; }
  /// The rank of this process.
  int process_index() const { return state_->process_index(); }
  /// The rank of this process on its machine.
  int local_process_index() const { return process_group().local_rank(); }
  /// The number of ranks.
  int num_processes() const { return state_->num_processes(); }
  /// The device of this rank.
  c10::Device device() const { return process_group().device(); }
  /// The group of all ranks; a recovery replaces it.
  const ProcessGroup& process_group() const { return state_->process_group(); }
  /// Options of this accelerator.
  const AcceleratorOptions& options() const { return state_->options(); }

  /// The module that was prepared; with Strategy::kFullyShard its parameters have no values.
  template <class Module>
  std::shared_ptr<Module> unwrap_model(const PreparedModel<Module>& model) const {
    return model.module();
  }

  /// With logical_shards: mean loss over all samples of the last complete step, the same bits on
  /// any number of ranks; NaN before the first.
  /// Errors: UsageError without logical_shards.
  double loss() const { return state_->loss(); }

  /// Steps of the optimizer that was prepared first.
  std::int64_t steps() const { return state_->steps(); }
  /// Number of recoveries that this process took part in; a replacement starts with 1.
  std::int64_t recoveries() const { return state_->recoveries(); }
  /// Whether the last complete step of an optimizer was skipped because gradients were not finite.
  bool optimizer_step_was_skipped() const { return state_->was_step_skipped(); }
  /// The loss scaler, enabled with precision float16. The update() that ends a step runs when the
  /// next one begins.
  const GradScaler& scaler() const { return state_->scaler(); }
  /// Random identifier of the training run, the same in all runs that resume from its snapshots.
  /// Rank 0's is the job's.
  const std::string& training_id() const { return state_->training_id(); }

  /// Saves what was prepared and registered, random states and loader positions, for load_state()
  /// on any number of ranks. Writes to `directory`, by default the option's, which
  /// SnapshotDirectory claims for this job. If a loop was left early, its epoch counts as finished.
  /// Collective.
  /// Errors: UsageError while gradients are being accumulated, since a snapshot does not hold them;
  /// without a model and an optimizer; for a directory that another job uses or that holds
  /// snapshots of another training run. SystemError; as Work::wait.
  void save_state(const std::string& directory = {});
  /// Returns when asynchronous saves are on disk; call it before the program ends, also after a
  /// preemption. Not collective.
  /// Errors: those of the saves; otherwise the next save_state() throws them.
  void wait_for_saves();
  /// Loads the newest complete snapshot; false if there is none. The next loop over a prepared
  /// loader starts after the last sample that was handed out. Call it after everything is prepared
  /// and registered as at the save. Claims the directory for this job. Collective.
  /// Errors: as SnapshotDirectory::load_latest and claim; UsageError if other objects were prepared
  /// or registered. After an error all is as before.
  bool load_state(const std::string& directory = {});

  /// Registers tensors that save_state() saves and load_state() overwrites in place. Names, shapes
  /// and dtypes must stay equal.
  void register_for_checkpointing(const std::string& name, TensorDict tensors);
  /// Registers an object with state_dict() and load_state_dict() of a TensorDict. If it, or another
  /// object, refuses what was saved, it gets its former state back.
  /// Lifetime: the object must outlive the accelerator.
  template <class Object>
  requires requires(Object& object, const TensorDict& values) {
    TensorDict(object.state_dict());
    object.load_state_dict(values);
  }
  void register_for_checkpointing(const std::string& name, Object& object) {
    register_state({.name = name,
                    .state_dict = [&object] { return object.state_dict(); },
                    .load_state_dict =
                        [&object](const TensorDict& values) { object.load_state_dict(values); }});
  }

 private:
  friend class internal::TrainerLoop;  // it registers state that a snapshot may lack
  DistributedDataParallelOptions ddp_options() const;
  void register_state(AcceleratorState::Registered registered);
  SnapshotDirectory& snapshots_in(const std::string& directory);

  bool has_joined_ = false;
  std::shared_ptr<AcceleratorState> state_;
};

}  // namespace lockstep
