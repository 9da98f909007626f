// What tests of Trainer train: numbered samples, and a line through them.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>

#include "lockstep/train/callbacks.h"
#include "lockstep/train/trainer.h"
#include "tests/ranks/fixture.h"
#include "tests/ranks/folder_of_ranks.h"

namespace lockstep::testing {

inline constexpr std::int64_t kSampleCount = 31;

// Sample i has the number i.
struct Numbered : torch::data::datasets::Dataset<Numbered, torch::data::Example<>> {
  torch::data::Example<> get(std::size_t index) override {
    const at::Tensor input = (at::arange(3) * 0.7 + static_cast<double>(index)).sin();
    return {input, at::full({1}, static_cast<double>(index), at::kFloat)};
  }
  std::optional<std::size_t> size() const override { return kSampleCount; }
};

inline auto numbered() {
  return Numbered().map(torch::data::transforms::Stack<>());
}

struct Line : Task<torch::nn::LinearImpl> {
  std::shared_ptr<torch::nn::LinearImpl> configure_model() override {
    return std::make_shared<torch::nn::LinearImpl>(3, 1);
  }
  std::unique_ptr<torch::optim::Optimizer> configure_optimizer(
      torch::nn::LinearImpl& net) override {
    return std::make_unique<torch::optim::Adam>(net.parameters(), 0.01);
  }
  std::unique_ptr<torch::optim::LRScheduler> configure_scheduler(
      torch::optim::Optimizer& optimizer) override {
    return std::make_unique<torch::optim::StepLR>(optimizer, 5, 0.9);
  }
  at::Tensor training_step(Model& model, Batch& batch, StepContext& step) override {
    step.log("number", batch.target.mean());
    for (const at::Tensor& parameter : model.parameters()) last = parameter;
    const at::Tensor loss = at::mse_loss(model(batch.data), batch.target * 0.1);
    return step.batch_index() == bad_batch ? loss / 0.0 : loss;
  }
  void validation_step(Model& model, Batch& batch, StepContext& step) override {
    EXPECT_FALSE(model->is_training());
    step.log("val_number", batch.target.mean());
    step.log("val_loss", val_loss);
  }
  void test_step(Model& model, Batch& batch, StepContext& step) override {
    EXPECT_FALSE(model->is_training());
    step.log("test_loss", at::mse_loss(model(batch.data), batch.target * 0.1));
  }

  at::Tensor last;
  std::int64_t bad_batch = -1;
  double val_loss = 1;
};

class TrainerTest : public Conformance {
 protected:
  TrainerOptions options(const std::string& max_duration, const std::string& name = "run") const {
    return {.max_duration = max_duration,
            .batch_size = 2,
            .log_every_n_steps = 3,
            .enable_progress_bar = false,
            .directory = path_ + "/" + name};
  }
  std::int64_t steps_per_epoch() const {
    return (kSampleCount + 2 * world_size_ - 1) / (2 * world_size_);
  }
  static std::size_t files_in(const std::string& folder) {
    std::error_code error;
    const std::filesystem::directory_iterator files(folder, error);
    const auto is_shown = [](const auto& file) {
      return !file.path().filename().string().starts_with('.');
    };
    return error ? 0 : static_cast<std::size_t>(std::count_if(begin(files), end(files), is_shown));
  }

  const FolderOfRanks folder_{group_, "trainer-"};
  const std::string path_ = folder_.path();
};

}  // namespace lockstep::testing
