#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include "lockstep/train/accelerator.h"
#include "lockstep/train/batch_size_search.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/evaluation_mode.h"
#include "lockstep/train/task.h"
#include "lockstep/train/trainer_loop.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

/// Argument of Trainer::fit for no validation data.
struct NoData {};

/// Trains a Task on any number of processes: loop, snapshots, logs and limits. Follows
/// lightning.Trainer.
///
/// ```cpp
/// Digits task;
/// lockstep::Trainer trainer({.max_duration = "20ep", .directory = "runs/digits"});
/// trainer.add(EarlyStopping({.patience = 5}));
/// const lockstep::FitResult result = trainer.fit(task, train_set, validation_set);
/// ```
///
/// Datasets are those of torch::data, and return batches: dataset.map(Stack<>()). Under a launcher
/// each process is a rank; without one fit() starts `devices` processes (see spawn()). A restarted
/// job resumes from its newest snapshot, at the next sample, on the same or another number of
/// ranks.
///
/// Under `lockstep run --max-restarts=N` fit() survives failed ranks, as an Accelerator does.
/// validate(), test() and find_batch_size() do not: call fit() before them.
///
/// Threads: call from the training thread.
/// Errors: UsageError for invalid options, naming them. What task and callbacks throw, after
/// on_exception of all callbacks.
class Trainer {
 public:
  explicit Trainer(const TrainerOptions& options = {}) : options_(with_replay(options)) {
    check(options_);
  }

  /// Adds a callback; callbacks run in the order in which they were added.
  template <std::derived_from<Callback> OneCallback>
  Trainer& add(OneCallback callback) {
    callbacks_.push_back(std::make_shared<OneCallback>(std::move(callback)));
    return *this;
  }

  /// Trains the task. Collective. SIGTERM or SIGUSR1 to any rank, or to the process that started
  /// them, makes all ranks save and end: FitEnd::kPreempted.
  template <class Module, class Batch, class TrainSet, class ValidationSet = NoData>
  FitResult fit(Task<Module, Batch>& task, const TrainSet& train_set,
                const ValidationSet& validation_set = {}) {
    return run_on_ranks(options_, [&] { return fit_here(task, train_set, validation_set); });
  }

  /// Runs the task's validation_step on all samples; returns the means of what it logs. Collective.
  template <class Module, class Batch, class Dataset>
  Metrics validate(Task<Module, Batch>& task, const Dataset& dataset,
                   const EvaluateOptions& options = {}) {
    return run_on_ranks(options_, [&] {
      return evaluate(task, dataset, options_.limit_val_batches, options_.logical_shards, options,
                      [&](auto& model, Batch& batch, StepContext& step, Accelerator&) {
                        task.validation_step(model, batch, step);
                      });
    });
  }
  /// Runs the task's test_step on all samples; returns the means of what it logs. Collective.
  template <class Module, class Batch, class Dataset>
  Metrics test(Task<Module, Batch>& task, const Dataset& dataset,
               const EvaluateOptions& options = {}) {
    return run_on_ranks(options_, [&] {
      return evaluate(task, dataset, options_.limit_test_batches, options_.logical_shards, options,
                      [&](auto& model, Batch& batch, StepContext& step, Accelerator&) {
                        task.test_step(model, batch, step);
                      });
    });
  }
  /// Runs the task's predict_step on all samples. Returns one row per sample, in the dataset's
  /// order, on the CPU; on all ranks, and in the process that started them. Collective.
  template <class Module, class Batch, class Dataset>
  at::Tensor predict(Task<Module, Batch>& task, const Dataset& dataset,
                     const EvaluateOptions& options = {}) {
    return run_on_ranks(options_, [&] {
      std::vector<at::Tensor> rows;
      const auto predict_batch = [&](auto& model, Batch& batch, StepContext& step,
                                     Accelerator& accelerator) {
        const at::Tensor predicted = task.predict_step(model, batch, step);
        rows.push_back(accelerator.gather_for_metrics(predicted).cpu());
      };
      evaluate(task, dataset, options_.limit_predict_batches, /*logical_shards=*/0, options,
               predict_batch);
      return at::cat(rows);
    });
  }

  /// Searches the largest batch size that fits into memory, by training steps whose results are
  /// discarded; see BatchSizeOptions. The rank with the least memory decides. Collective.
  template <class Module, class Batch, class TrainSet>
  FoundBatchSize find_batch_size(Task<Module, Batch>& task, const TrainSet& train_set,
                                 const BatchSizeOptions& options = {}) {
    return run_on_ranks(options_, [&] { return find_batch_size_here(task, train_set, options); });
  }

  /// Options of this Trainer.
  const TrainerOptions& options() const { return options_; }
  /// Whether this process prints results for the job: rank 0, or the process that started the
  /// ranks.
  bool is_global_zero() const;

 private:
  template <class Module, class Batch, class TrainSet, class ValidationSet>
  FitResult fit_here(Task<Module, Batch>& task, const TrainSet& train_set,
                     const ValidationSet& validation_set) {
    Accelerator accelerator(accelerator_options(options_));
    seed_ranks(options_, accelerator.process_index());
    auto module = task.configure_model();
    auto model = accelerator.prepare(module);
    const auto raw_optimizer = task.configure_optimizer(*module);
    auto optimizer = accelerator.prepare(*raw_optimizer);
    const auto raw_scheduler = task.configure_scheduler(*raw_optimizer);
    std::optional<PreparedScheduler<torch::optim::LRScheduler>> scheduler;
    if (raw_scheduler) scheduler.emplace(accelerator.prepare(*raw_scheduler));
    auto loader = accelerator.make_data_loader(train_set, train_loader_options(options_));

    std::vector<std::shared_ptr<Callback>> callbacks = callbacks_;
    for (auto& callback : callbacks_of(options_)) callbacks.push_back(std::move(callback));
    TrainerLoop loop(options_, callbacks, accelerator, *module, *raw_optimizer,
                     {.position = loader.position(),
                      .validate = validation_of(task, validation_set, accelerator, model),
                      .has_scheduler = raw_scheduler != nullptr});
    return loop.run([&] {
      for (auto& batch : loader) {
        const auto accumulating = accelerator.accumulate();
        optimizer.zero_grad();
        StepContext step = loop.begin_batch();
        const at::Tensor loss = task.training_step(model, batch, step);
        loop.log_loss(loss);
        accelerator.backward(loss);
        loop.clip_gradients();
        loop.begin_update();
        optimizer.step();
        if (scheduler) scheduler->step();
        // A run that resumes from a snapshot made here starts after this batch.
        if (loop.end_batch()) return;
      }
    });
  }

  // One pass over the validation data; empty without such data.
  template <class Module, class Batch, class ValidationSet>
  std::function<Metrics()> validation_of(Task<Module, Batch>& task, const ValidationSet& dataset,
                                         Accelerator& accelerator, PreparedModel<Module>& model) {
    if constexpr (std::is_same_v<ValidationSet, NoData>) {
      return {};
    } else {
      DataLoaderOptions loaded =
          evaluation_loader_options(options_, options_.limit_val_batches, accelerator);
      loaded.logical_shards = options_.logical_shards;
      auto loader = std::make_shared<DataLoader<ValidationSet>>(dataset, loaded);
      seed_evaluation(*loader->position(), options_);
      return [&task, &accelerator, &model, loader] {
        loader->position()->set_process_group(accelerator.process_group());
        return pass_over(*loader, accelerator, model, [&](auto& batch, StepContext& step) {
          task.validation_step(model, batch, step);
        });
      };
    }
  }

  // One pass over all samples, without gradients, with the model in evaluation mode.
  template <class Loader, class Module, class Step>
  static Metrics pass_over(Loader& loader, Accelerator& accelerator, PreparedModel<Module>& model,
                           const Step& evaluate_batch) {
    const at::NoGradGuard no_grad;
    MetricMeans means;
    const EvaluationMode evaluation(*model);
    for (auto& batch : loader) {
      const LoaderPosition& at = *loader.position();
      StepContext step(means, at.samples(), at.cursor().batches - 1);
      evaluate_batch(batch, step);
    }
    return means.take_means(accelerator.process_group());
  }

  template <class Module, class Batch, class Dataset, class Step>
  Metrics evaluate(Task<Module, Batch>& task, const Dataset& dataset, std::int64_t limit,
                   int logical_shards, const EvaluateOptions& options, const Step& evaluate_batch) {
    AcceleratorOptions accelerated = accelerator_options(options_);
    accelerated.sample_log_directory.clear();  // These samples are not trained.
    accelerated.logical_shards = logical_shards;
    accelerated.recover = false;
    Accelerator accelerator(accelerated);
    seed_ranks(options_, accelerator.process_index());
    auto module = task.configure_model();
    load_weights(*module, options, options_, callbacks_, accelerator);
    auto model = accelerator.prepare(module);
    DataLoaderOptions loaded = evaluation_loader_options(options_, limit, accelerator);
    loaded.logical_shards = logical_shards;
    auto loader = logical_shards > 0 ? DataLoader<Dataset>(dataset, loaded)
                                     : accelerator.make_data_loader(dataset, loaded);
    if (logical_shards > 0) seed_evaluation(*loader.position(), options_);
    ProgressBar bar({.steps_per_epoch = loader.size(),
                     .rank = accelerator.process_index(),
                     .enabled = options_.enable_progress_bar});
    return pass_over(loader, accelerator, model, [&](auto& batch, StepContext& step) {
      evaluate_batch(model, batch, step, accelerator);
      if (loader.position()->is_last_shard()) bar.step_done();
    });
  }

  template <class Module, class Batch, class TrainSet>
  FoundBatchSize find_batch_size_here(Task<Module, Batch>& task, const TrainSet& train_set,
                                      const BatchSizeOptions& options) {
    AcceleratorOptions accelerated = accelerator_options(options_);
    if (accelerated.strategy == Strategy::kFullyShard) {
      throw UsageError(
          "Trainer::find_batch_size: not supported with strategy kFullyShard, where no rank can "
          "step on its own; try batch sizes with fast_dev_run");
    }
    accelerated.recover = false;
    accelerated.logical_shards = 0;
    // Each rank steps separately, and needs its own parameters.
    accelerated.one_copy_per_machine = accelerated.ddp.one_copy_per_machine = false;
    accelerated.ddp.forward_sync_buffers = false;  // No rank waits for one that runs out of memory.
    Accelerator accelerator(accelerated);
    seed_ranks(options_, accelerator.process_index());
    auto module = task.configure_model();
    auto model = accelerator.prepare(module);
    const auto optimizer = task.configure_optimizer(*module);
    DataLoaderOptions loaded = evaluation_loader_options(options_, 0, accelerator);
    loaded.split_batches = false;
    BatchSizeSearch search(options, static_cast<std::int64_t>(train_set.size().value()),
                           accelerator);
    while (const auto batch_size = search.next()) {
      loaded.batch_size = *batch_size;
      search.run([&] {
        DataLoader<TrainSet> loader(train_set, loaded);
        const auto own = accelerator.no_sync(model);
        for (auto& batch : loader) {
          MetricMeans means;
          StepContext step(means, loader.position()->samples(), 0);
          const at::Tensor loss = task.training_step(model, batch, step);
          search.note_memory();
          loss.backward();
          optimizer->step();
          optimizer->zero_grad();
          if (!search.needs_another_step(loader.position()->samples())) return;
        }
      });
    }
    return search.found();
  }

  TrainerOptions options_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
};

}  // namespace lockstep
