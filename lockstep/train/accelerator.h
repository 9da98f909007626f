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

/// One batch of those whose gradients are summed up for one step; see Accelerator::accumulate.
class [[nodiscard]] AccumulateGuard {
 public:
  explicit AccumulateGuard(std::shared_ptr<AcceleratorState> state);
  ~AccumulateGuard();
  AccumulateGuard(const AccumulateGuard&) = delete;
  AccumulateGuard& operator=(const AccumulateGuard&) = delete;

 private:
  std::shared_ptr<AcceleratorState> state_;
  std::vector<std::unique_ptr<NoSyncGuard>> local_;
};

/// Trains with the program's own loop, on one process and on many without a change, in the manner
/// of Hugging Face's accelerate.Accelerator:
///
///   lockstep::Accelerator accelerator;
///   auto [model, optimizer, loader] = accelerator.prepare(net, adam, std::move(data));
///   for (auto& batch : loader) {
///     optimizer.zero_grad();
///     auto loss = torch::cross_entropy_loss(model.forward(batch.data), batch.target);
///     accelerator.backward(loss);
///     optimizer.step();
///   }
///
/// Under `lockstep run` (or torchrun, srun, mpirun) each process is a rank; by itself the program
/// is the only one. Gradients are the mean over all samples of a step, however these are spread
/// over ranks and accumulated batches, where each loss is the mean over its batch's samples.
///
/// Under `lockstep run --max-restarts=N` a failed rank costs the step in flight only. On the
/// survivors its collectives return without an exception, and the step is void: optimizers,
/// schedulers and print() do nothing. At the next batch a replacement receives the state, and the
/// loader repeats the batch. Needs a prepared optimizer and a loop over epochs(); not with a comm
/// hook or a ShardedOptimizer, or where two prepared loaders are looped over at once: then all
/// ranks restart. docs/accelerator.md says what the program has to register.
///
/// Threads: the training thread, one accelerator at a time.
/// Lifetime: what is prepared must outlive it where it is given by reference; what prepare()
/// returns may outlive it, with the group.
/// Errors: UsageError for options that cannot work; as init_process_group.
class Accelerator {
 public:
  /// Joins the job unless the program has done so.
  explicit Accelerator(const AcceleratorOptions& options = {});
  /// Leaves the job where it joined it.
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  /// Each of these becomes what trains on all ranks, in the order given: a model (a holder, a
  /// shared_ptr or a module, which must outlive it), an optimizer, a scheduler of learning rates, a
  /// data loader. Collective. A model and its optimizer stay usable by themselves.
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
  /// LibTorch's loader, with a RandomSampler or SequentialSampler, gives up its dataset, of which
  /// each rank then has its part. Errors: UsageError for a loader with workers, which keep it: use
  /// make_data_loader.
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

  /// A loader of this rank's part of a dataset. Of the options it sets group, device and seed, and
  /// split_batches where the accelerator's are.
  template <class Dataset>
  auto make_data_loader(Dataset dataset, DataLoaderOptions options) {
    options.process_group = process_group();
    options.device = device();
    options.seed = this->options().seed;
    options.split_batches = options.split_batches || this->options().split_batches;
    options.logical_shards = state_->shards_of_next_loader(options.logical_shards);
    return prepare(DataLoader<Dataset>(std::move(dataset), options));
  }

  /// In place of loss.backward(), for a loss that is the mean over its batch's samples; with a
  /// weight, which then every backward of a step must have on every rank, over as many tokens or
  /// whatever it is: see DistributedDataParallel::backward.
  /// Errors: UsageError with several models and a weight, or an epoch whose batches differ in size,
  /// as it is not known whose gradients they are: then call model.ddp().backward(); as Work::wait.
  void backward(const at::Tensor& loss) { state_->backward(loss, std::nullopt); }
  void backward(const at::Tensor& loss, double weight) { state_->backward(loss, weight); }

  /// While it lives, what is done is for one of gradient_accumulation_steps batches that make one
  /// step; gradients are exchanged, and optimizers and schedulers step, in the last of them, which
  /// an epoch's last batch is, too.
  ///
  ///   for (auto& batch : loader) {
  ///     const auto accumulating = accelerator.accumulate();
  ///     …                                                // the loop's body as it was
  ///   }
  AccumulateGuard accumulate() { return AccumulateGuard(state_); }
  /// Whether the step is complete with this batch; with logical_shards, with this shard.
  bool sync_gradients() const { return state_->sync_gradients(); }
  /// Gradients stay this rank's own while it lives. Errors: UsageError with logical_shards.
  template <class Module>
  [[nodiscard]] NoSyncGuard no_sync(const PreparedModel<Module>& model) {
    state_->refuse_with_shards("no_sync");
    return model.ddp().no_sync();
  }

  /// The accelerator's precision, for what is calculated outside of prepared models.
  [[nodiscard]] Autocast autocast() const;

  /// As lockstep::clip_grad_norm_, where a step is complete, after the gradients' scale has been
  /// taken out; otherwise nothing, and 0.
  double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                         double norm_type = 2.0);
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

  /// The tensors of all ranks, one behind the other along dimension 0, in the order of ranks; a
  /// tensor without dimensions counts as one of one element. Collective.
  /// Errors: UsageError where shapes or dtypes differ; as Work::wait.
  at::Tensor gather(const at::Tensor& tensor) const;
  /// As gather, for a tensor with a row for each sample of the batch at which the loop over a
  /// prepared loader is: each sample once, in the order of the dataset or its shuffled one.
  /// Errors: UsageError where the tensor has other rows; as Work::wait.
  at::Tensor gather_for_metrics(const at::Tensor& tensor) const;
  /// The sum, or what `op` says, over all ranks: a new tensor. Collective.
  at::Tensor reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) const;
  void wait_for_everyone() const;

  /// Runs `body`, code between two steps with collectives, and returns what it returns: an
  /// evaluation over a prepared loader. Where a rank fails meanwhile it runs again from the start,
  /// with the ranks that are left, so that no result is of a part of the samples; keep its sums
  /// inside. In a void step it does not run: NaN, an undefined number of which every comparison is
  /// false, or an empty result. Collective. Errors: what `body` throws.
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

  /// The numbers of the epochs that are left of `count`: in a process that resumes or replaces
  /// another from that of the training's state on. At its end the training ends on all ranks.
  ///
  ///   for (const std::int64_t epoch : accelerator.epochs(10)) {
  ///     for (auto& batch : loader) …
  ///   }
  class Epochs {
   public:
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
  Epochs epochs(std::int64_t count) const { return {state_, count}; }

  /// Runs `action`, code between two steps with collectives, again where a rank fails meanwhile,
  /// with the ranks that are left. False, without running it, in a void step.
  bool run_on_survivors(const std::function<void()>& action) {
    return state_->run_on_survivors(action);
  }
  /// The training has ended without this process, which replaces one that failed at its end: loops
  /// over the loader hand out nothing.
  bool is_training_over() const { return state_->is_training_over(); }
  /// Ranks are lost, and the step under way does not count.
  bool is_step_void() const { return state_->is_discarding(); }
  /// Called while this process waits for its rank in a recovery: what it throws ends the wait.
  void set_while_waiting(std::function<void()> while_waiting) {
    state_->set_while_waiting(std::move(while_waiting));
  }
  /// For the function of set_while_waiting(), in a preempted process: writes a snapshot into
  /// AcceleratorOptions::directory without the other ranks, and ends the training in this process;
  /// throw then, and exit with kExitPreempted. Other survivors may do the same. False: this process
  /// does not hold the complete state of a step. Parameters are saved as they are: restore them
  /// first where an evaluation has put others in their place.
  /// Errors: as SnapshotDirectory::save.
  bool save_and_leave();
  /// Ends the training in this process before its end, as the ranks are preempted and have saved a
  /// snapshot: recovery is off, and nobody takes this state for that of the end.
  void leave_training();

  /// The training is over: waits until all ranks are here, so that none needs the state of another
  /// any more. epochs() calls it at its end; call it after a loop of another form. Collective.
  void end_training();
  /// As end_training(). False: a rank failed, and the last step has to be made again: loop again.
  [[nodiscard]] bool try_end_training();

  /// One line on standard output, once in the job; not in a step that does not count.
  template <class... Parts>
  void print(const Parts&... parts) const {
    std::ostringstream line;
    (line << ... << parts);
    state_->print(line.str());
  }
  bool is_main_process() const { return state_->is_main(); }
  bool is_local_main_process() const { return local_process_index() == 0; }
  int process_index() const { return state_->process_index(); }
  int local_process_index() const { return process_group().local_rank(); }
  int num_processes() const { return state_->num_processes(); }
  c10::Device device() const { return process_group().device(); }
  const ProcessGroup& process_group() const { return state_->group(); }
  const AcceleratorOptions& options() const { return state_->options(); }

  /// The module as it was given.
  template <class Module>
  std::shared_ptr<Module> unwrap_model(const PreparedModel<Module>& model) const {
    return model.module();
  }

  /// With logical_shards: the mean of the last complete step's losses over all its samples, the
  /// same bits on any number of ranks. NaN before the first. Errors: UsageError without the option.
  double loss() const { return state_->loss(); }

  /// Steps of the first optimizer that was prepared.
  std::int64_t steps() const { return state_->steps(); }
  /// Recoveries that this process took part in; a replacement begins with 1.
  std::int64_t recoveries() const { return state_->recoveries(); }
  /// Whether the last complete step of an optimizer was left out, for gradients that are not
  /// finite.
  bool optimizer_step_was_skipped() const { return state_->was_step_skipped(); }
  /// With precision float16; else disabled. The update that ends a step is made as the next begins.
  const GradScaler& scaler() const { return state_->scaler(); }
  /// A random text of the training, the same in all runs that go on from its snapshots. Rank 0's
  /// counts.
  const std::string& training_id() const { return state_->training_id(); }

  /// Saves all that was prepared and registered, random states and where loaders are, for
  /// load_state() on any number of ranks: one file in `directory`, or in the option's, by
  /// SnapshotDirectory, which is then this job's alone. Of a loop that was left early it holds that
  /// the next is of the next epoch. Collective. Errors: UsageError while gradients are being
  /// accumulated, which it does not hold, without a model and an optimizer, in a folder that
  /// another job uses or that has another training's snapshots; SystemError; as Work::wait.
  void save_state(const std::string& directory = {});
  /// Returns when what was saved is on disk: with asynchronous_saves before a program ends, after a
  /// preemption too. Not collective. Errors: those of the saves, which the next save_state() would
  /// throw otherwise.
  void wait_for_saves();
  /// Loads the newest whole snapshot; false where there is none. The next loop over a prepared
  /// loader goes on behind the last sample that had been handed out. To be called after the same
  /// has been prepared and registered. The directory is this job's alone from then on. Collective.
  /// Errors, with all as it was before: as SnapshotDirectory::load_latest and claim; UsageError
  /// where something else was prepared or registered.
  bool load_state(const std::string& directory = {});

  /// Tensors that save_state() holds and load_state() sets, in place: of the same names, shapes and
  /// dtypes.
  void register_for_checkpointing(const std::string& name, TensorDict tensors);
  /// An object with state_dict() and load_state_dict(), of a TensorDict, which must outlive it.
  /// Where it, or anything else, refuses what was saved, it gets back what it had.
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
  friend class TrainerLoop;  // whose sums a snapshot may lack
  DistributedDataParallelOptions ddp_options() const;
  void register_state(AcceleratorState::Registered registered);
  SnapshotDirectory& snapshots_in(const std::string& directory);

  bool has_joined_ = false;
  std::shared_ptr<AcceleratorState> state_;
};

}  // namespace lockstep
