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

/// One batch of a Trainer's loop, as a task sees it.
class StepContext {
 public:
  StepContext(MetricMeans& means, std::int64_t samples, std::int64_t batch_index)
      : means_(means), samples_(static_cast<double>(samples)), batch_index_(batch_index) {}

  /// Adds to the means of a metric: over all samples where `value` is a mean over the batch's.
  /// Training metrics are shown and written every log_every_n_steps, those of a validation at its
  /// end. All ranks must log the same names.
  void log(std::string_view name, const at::Tensor& value) { means_.log(name, value, samples_); }
  void log(std::string_view name, double value) { means_.log(name, value, samples_); }

  /// From 0, of the epoch's on this rank.
  std::int64_t batch_index() const { return batch_index_; }

 private:
  MetricMeans& means_;
  double samples_;
  std::int64_t batch_index_;
};

/// What is trained, and how: the part of a training that is the program's own. After
/// lightning.LightningModule, whose names it has.
///
///   struct Digits : lockstep::Task<Net> {
///     std::shared_ptr<Net> configure_model() override { return std::make_shared<Net>(); }
///     std::unique_ptr<torch::optim::Optimizer> configure_optimizer(Net& net) override {
///       return std::make_unique<torch::optim::Adam>(net.parameters(), 1e-3);
///     }
///     at::Tensor training_step(Model& model, Batch& batch, StepContext&) override {
///       return at::cross_entropy_loss(model(batch.data), batch.target);
///     }
///   };
template <class Module, class BatchType = torch::data::Example<>>
class Task {
 public:
  using Model = PreparedModel<Module>;
  using Batch = BatchType;

  virtual ~Task() = default;

  /// Once, on each rank, after the seed is set: rank 0's weights count.
  virtual std::shared_ptr<Module> configure_model() = 0;
  virtual std::unique_ptr<torch::optim::Optimizer> configure_optimizer(Module& module) = 0;
  /// Steps after each step of the optimizer. Null: none.
  virtual std::unique_ptr<torch::optim::LRScheduler> configure_scheduler(torch::optim::Optimizer&) {
    return nullptr;
  }

  /// The loss, a mean over the batch's samples; logged as "train_loss".
  virtual at::Tensor training_step(Model& model, Batch& batch, StepContext& step) = 0;
  /// Without gradients, the model in evaluation mode. Logs what it finds: "val_loss", … With
  /// logical_shards ranks may have different numbers of batches: no collectives here.
  virtual void validation_step(Model&, Batch&, StepContext&) {
    throw UsageError("Trainer: there is validation data, and the task has no validation_step");
  }
  /// The same for Trainer::test; logs "test_loss", …
  virtual void test_step(Model&, Batch&, StepContext&) {
    throw UsageError("Trainer::test: the task has no test_step");
  }
  /// What Trainer::predict is to return of these samples: a row for each of them.
  virtual at::Tensor predict_step(Model& model, Batch& batch, StepContext&) {
    if constexpr (requires { at::Tensor(model(batch.data)); }) {
      return model(batch.data);
    } else {
      throw UsageError("Trainer::predict: the task has no predict_step");
    }
  }
};

}  // namespace lockstep
