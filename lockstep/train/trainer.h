#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "lockstep/train/accelerator.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/task.h"
#include "lockstep/train/trainer_loop.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

/// No validation data.
struct NoData {};

/// Trains a Task: the loop, its snapshots, logs and limits, on one process and on many. In the
/// manner of lightning.Trainer.
///
///   Digits task;
///   lockstep::Trainer trainer({.max_duration = "20ep", .default_root_dir = "runs/digits"});
///   trainer.add(EarlyStopping({.patience = 5}));
///   const lockstep::FitResult result = trainer.fit(task, train_set, validation_set);
///
/// Datasets are torch::data's, of batches: dataset.map(Stack<>()). Under a launcher each process is
/// a rank; without one fit() starts `devices` processes (see spawn()). Killed and started again it
/// goes on from its newest snapshot, behind the last sample, on the same or another number of
/// ranks. Threads: the training thread. Errors: UsageError for options that cannot work, naming
/// them; what task and callbacks throw, after they have been told (on_exception).
class Trainer {
 public:
  explicit Trainer(const TrainerOptions& options = {}) : options_(options) { check(options_); }

  /// Called in the order in which they were added.
  template <std::derived_from<Callback> OneCallback>
  Trainer& add(OneCallback callback) {
    callbacks_.push_back(std::make_shared<OneCallback>(std::move(callback)));
    return *this;
  }

  /// Collective. Where it has started processes of its own, this one has not trained: of the result
  /// `end` (kDone for kStopped, too) and `time` are known, and the weights are in the snapshots. A
  /// SIGTERM to it lets those save, and ends it as a signal does.
  template <class Module, class Batch, class TrainSet, class ValidationSet = NoData>
  FitResult fit(Task<Module, Batch>& task, const TrainSet& train_set,
                const ValidationSet& validation_set = {}) {
    FitResult result;
    const auto fit_once = [&] {
      result = fit_here(task, train_set, validation_set);
      return result.end;
    };
    if (const auto end = run_in_processes(options_, fit_once)) {
      result.end = *end;
      if (options_.fast_dev_run == 0) result.time = time_of_newest_snapshot(options_);
    }
    return result;
  }

  const TrainerOptions& options() const { return options_; }

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

    TrainerLoop loop(options_, callbacks_, accelerator, *module, *raw_optimizer,
                     {.position = loader.position(),
                      .validate = validation_of(task, validation_set, accelerator, model)});
    return loop.run([&] {
      for (auto& batch : loader) {
        const auto accumulating = accelerator.accumulate();
        optimizer.zero_grad();
        StepContext step = loop.begin_batch();
        const at::Tensor loss = task.training_step(model, batch, step);
        loop.log_loss(loss);
        accelerator.backward(loss);
        loop.clip_gradients();
        optimizer.step();
        if (scheduler) scheduler->step();
        if (loop.end_batch()) return;
      }
    });
  }

  // One pass over the validation data; empty without.
  template <class Module, class Batch, class ValidationSet>
  std::function<Metrics()> validation_of(Task<Module, Batch>& task, const ValidationSet& dataset,
                                         Accelerator& accelerator, PreparedModel<Module>& model) {
    if constexpr (std::is_same_v<ValidationSet, NoData>) {
      return {};
    } else {
      auto loader = std::make_shared<DataLoader<ValidationSet>>(
          dataset, validation_loader_options(options_, accelerator));
      return [&task, &accelerator, &model, loader] {
        const at::NoGradGuard no_grad;
        MetricMeans means;
        std::int64_t index = 0;
        model->eval();
        for (auto& batch : *loader) {
          StepContext step(means, loader->position()->samples(), index++);
          task.validation_step(model, batch, step);
        }
        model->train();
        return means.take_means(accelerator.process_group());
      };
    }
  }

  TrainerOptions options_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
};

}  // namespace lockstep
