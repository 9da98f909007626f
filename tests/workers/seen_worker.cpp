// A Trainer with all that shows what it does. As many batches as it is told, and then an end as by
// itself; started again it goes on.
//
//   seen_worker FOLDER BATCHES [STEPS] [busy]     traces the steps; busy: rank 1 traces already
#include <memory>
#include <optional>
#include <string>

#include <ATen/ATen.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "lockstep/base/error.h"
#include "lockstep/program/run_main.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/loggers.h"
#include "lockstep/train/trainer.h"

namespace seen_worker {
namespace {

struct Waves : torch::data::datasets::Dataset<Waves, torch::data::Example<>> {
  torch::data::Example<> get(std::size_t index) override {
    const at::Tensor input = (at::arange(8) * 0.7 + static_cast<double>(index)).sin();
    return {input, input.sum().view({1})};
  }
  std::optional<std::size_t> size() const override { return 48; }
};

struct Sum : lockstep::Task<torch::nn::LinearImpl> {
  std::shared_ptr<torch::nn::LinearImpl> configure_model() override {
    return std::make_shared<torch::nn::LinearImpl>(8, 1);
  }
  std::unique_ptr<torch::optim::Optimizer> configure_optimizer(
      torch::nn::LinearImpl& net) override {
    return std::make_unique<torch::optim::Adam>(net.parameters(), 0.01);
  }
  at::Tensor training_step(Model& model, Batch& batch, lockstep::StepContext&) override {
    return at::mse_loss(model(batch.data), batch.target);
  }
  void validation_step(Model& model, Batch& batch, lockstep::StepContext& step) override {
    step.log("val_loss", at::mse_loss(model(batch.data), batch.target));
  }
};

int run(int argc, char** argv) {
  if (argc < 3) throw lockstep::UsageError("seen_worker FOLDER BATCHES [STEPS] [busy]");
  lockstep::Trainer trainer({.max_duration = std::string(argv[2]) + "ba",
                             .batch_size = 4,
                             .log_every_n_steps = 1,
                             .enable_progress_bar = false,
                             .directory = argv[1],
                             .log_samples = true});
  std::optional<lockstep::Trace> other;
  if (argc > 4) {
    trainer.add(lockstep::LambdaCallback({.on_fit_start = [&](lockstep::TrainerState& state) {
      if (!state.is_main()) other.emplace(std::string(argv[1]) + ".other.json");
    }}));
  }
  trainer.add(lockstep::LearningRateMonitor());
  trainer.add(lockstep::ThroughputMonitor({.tokens_per_sample = 8}));
  trainer.add(lockstep::TensorBoardLogger());
  trainer.add(lockstep::CsvLogger());
  if (argc > 3) trainer.add(lockstep::TraceCallback({.steps = argv[3]}));
  Sum task;
  const auto batches = [] { return Waves().map(torch::data::transforms::Stack<>()); };
  trainer.fit(task, batches(), batches());
  return 0;
}

}  // namespace

int run_worker(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}

}  // namespace seen_worker
