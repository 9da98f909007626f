#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <torch/data/example.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "lockstep/base/error.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/prepared.h"

namespace lockstep {

/// One batch in a Trainer's loop, as a task sees it.
class StepContext {
 public:
  StepContext(MetricMeans& means, std::int64_t samples, std::int64_t batch_index)
      : means_(means), samples_(static_cast<double>(samples)), batch_index_(batch_index) {}

  /// Adds to a metric's mean over all samples; `value` is a mean over this batch. Training metrics
  /// are logged every log_every_n_steps, those of a validation at its end. All ranks must log the
  /// same names.
  void log(std::string_view name, const at::Tensor& value) { means_.log(name, value, samples_); }
  void log(std::string_view name, double value) { means_.log(name, value, samples_); }

  /// Number of this batch in its epoch on this rank, from 0.
  std::int64_t batch_index() const { return batch_index_; }

 private:
  MetricMeans& means_;
  double samples_;
  std::int64_t batch_index_;
};

/// The program's part of a training run: model, optimizer, loss and metrics. Names are those of
/// lightning.LightningModule.
///
/// ```cpp
/// struct Digits : lockstep::Task<Net> {
///   std::shared_ptr<Net> configure_model() override { return std::make_shared<Net>(); }
///   std::unique_ptr<torch::optim::Optimizer> configure_optimizer(Net& net) override {
///     return std::make_unique<torch::optim::Adam>(net.parameters(), 1e-3);
///   }
///   at::Tensor training_step(Model& model, Batch& batch, StepContext&) override {
///     return at::cross_entropy_loss(model(batch.data), batch.target);
///   }
/// };
/// ```
///
/// Threads: the Trainer calls it on the training thread.
template <class Module, class BatchType = torch::data::Example<>>
class Task {
 public:
  /// The model that steps receive.
  using Model = PreparedModel<Module>;
  /// The batch that steps receive. The tensors of a torch::data::Example are on the rank's device.
  using Batch = BatchType;

  virtual ~Task() = default;

  /// Creates the model. Called once per rank, after the seed is set; all ranks start with rank 0's
  /// weights.
  virtual std::shared_ptr<Module> configure_model() = 0;
  /// Creates the optimizer of the model's parameters.
  virtual std::unique_ptr<torch::optim::Optimizer> configure_optimizer(Module& module) = 0;
  /// Creates a learning rate scheduler, which steps after each optimizer step. Null: none.
  virtual std::unique_ptr<torch::optim::LRScheduler> configure_scheduler(torch::optim::Optimizer&) {
    return nullptr;
  }

  /// Returns the loss, a mean over the batch's samples; it is logged as "train_loss".
  virtual at::Tensor training_step(Model& model, Batch& batch, StepContext& step) = 0;
  /// Logs metrics such as "val_loss". Runs without gradients, with the model in evaluation mode.
  /// With logical_shards ranks may have different numbers of batches: call no collectives.
  virtual void validation_step(Model&, Batch&, StepContext&) {
    throw UsageError("Trainer: validation data given, but the task has no validation_step");
  }
  /// The same for Trainer::test; logs "test_loss" and others.
  virtual void test_step(Model&, Batch&, StepContext&) {
    throw UsageError("Trainer::test: the task has no test_step");
  }
  /// Returns the predictions of Trainer::predict, one row per sample. By default the model's
  /// output.
  virtual at::Tensor predict_step(Model& model, Batch& batch, StepContext&) {
    if constexpr (requires { at::Tensor(model(batch.data)); }) {
      return model(batch.data);
    } else {
      throw UsageError("Trainer::predict: the task has no predict_step");
    }
  }
};

}  // namespace lockstep
