// What a Trainer does beside fit(): validate, test, predict, and the search for a batch size.
#include <cmath>

#include "lockstep/optim/optimizers.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/state_dict.h"
#include "tests/ranks/train/trainer_fixture.h"

namespace lockstep::testing {
namespace {

// The mean over all samples, by hand.
double loss_of(torch::nn::LinearImpl& net) {
  const at::NoGradGuard no_grad;
  double sum = 0;
  Numbered dataset;
  for (std::size_t i = 0; i < kSampleCount; ++i) {
    const auto sample = dataset.get(i);
    sum += at::mse_loss(net.forward(sample.data), sample.target * 0.1).item<double>();
  }
  return sum / static_cast<double>(kSampleCount);
}

class TrainerEvaluationTest : public TrainerTest {
 protected:
  // Weights of a file that all ranks see.
  std::string weights(double scale) const {
    const std::string path = path_ + "/weights.pt";
    if (rank_ == 0) {
      save(path, {{"weight", at::full({1, 3}, scale)}, {"bias", at::full({1}, 0.5)}});
    }
    group_.barrier();
    return path;
  }
};

TEST_F(TrainerEvaluationTest, TestsTheLastSnapshotOnEachSampleOnce) {
  Line task;
  Trainer trainer(options("5ba"));
  trainer.fit(task, numbered());
  group_.barrier();
  const Metrics metrics = trainer.test(task, numbered());
  ASSERT_EQ(metrics.size(), 1U);
  torch::nn::LinearImpl net(3, 1);
  const auto newest = SnapshotDirectory(path_ + "/run/snapshots").newest();
  load_state_dict(net, read_state_dict(path_ + "/run/snapshots/" + newest->file_name()));
  EXPECT_NEAR(*find_metric(metrics, "test_loss"), loss_of(net), 1e-5);
  EXPECT_DOUBLE_EQ(*find_metric(trainer.validate(task, numbered()), "val_number"),
                   (kSampleCount - 1) / 2.0);
}

TEST_F(TrainerEvaluationTest, WhatIsTestedIsNoSampleOfTheTraining) {
  Line task;
  TrainerOptions logged = options("1ep");
  logged.log_samples = true;
  Trainer trainer(logged);
  trainer.fit(task, numbered());
  group_.barrier();
  const std::string log = path_ + "/run/data/samples.rank" + std::to_string(rank_) + ".jsonl";
  const auto bytes = std::filesystem::file_size(log);
  trainer.test(task, numbered());
  trainer.predict(task, numbered());
  EXPECT_EQ(std::filesystem::file_size(log), bytes);
}

TEST_F(TrainerEvaluationTest, PredictsInTheDatasetsOrder) {
  Line task;
  const at::Tensor rows =
      Trainer(options("1ep")).predict(task, numbered(), {.ckpt_path = weights(2)});
  ASSERT_EQ(rows.sizes(), at::IntArrayRef({kSampleCount, 1}));
  Numbered dataset;
  for (std::int64_t i = 0; i < kSampleCount; ++i) {
    const double expected =
        2 * dataset.get(static_cast<std::size_t>(i)).data.sum().item<double>() + 0.5;
    EXPECT_NEAR(rows[i].item<double>(), expected, 1e-5) << i;
  }
  EXPECT_FALSE(rows.requires_grad());
  EXPECT_TRUE(same_bits_everywhere({rows}));
}

TEST_F(TrainerEvaluationTest, TakesTheBestWeightsOfItsModelCheckpoint) {
  Line task;
  TrainerOptions kept = options("3ep");
  Trainer trainer(kept);
  trainer.add(ModelCheckpoint({.monitor = "val_loss"}));
  EXPECT_SAYS(message_of<Error>([&] { trainer.test(task, numbered(), {.ckpt_path = "best"}); }),
              "has no best weights yet");
  task.val_loss = 1;
  trainer.add(LambdaCallback({.on_validation_end = [&](TrainerState& state, const Metrics&) {
    task.val_loss = static_cast<double>(state.time.epochs);
  }}));
  trainer.fit(task, numbered(), numbered());
  group_.barrier();
  torch::nn::LinearImpl net(3, 1);
  const std::string best = ModelCheckpoint().best_model_path(kept.directory);
  EXPECT_SAYS(best, "epoch=0-");
  load_state_dict(net, read_state_dict(best));
  EXPECT_NEAR(*find_metric(trainer.test(task, numbered(), {.ckpt_path = "best"}), "test_loss"),
              loss_of(net), 1e-5);
}

TEST_F(TrainerEvaluationTest, WhatIsNotThereIsRefused) {
  Line task;
  const Trainer untrained(options("1ep", "none"));
  const auto refusal = [&](const EvaluateOptions& from) {
    return message_of<Error>([&] { Trainer(options("1ep", "none")).test(task, numbered(), from); });
  };
  EXPECT_SAYS(refusal({}), "none/snapshots has no snapshot; train first");
  EXPECT_SAYS(refusal({.ckpt_path = "best"}), "there is no ModelCheckpoint");
  EXPECT_SAYS(refusal({.ckpt_path = path_ + "/no.pt"}), "no.pt");
}

TEST_F(TrainerEvaluationTest, FindsTheLargestBatchOfTheDatasetWhereMemorySuffices) {
  Line task;
  const FoundBatchSize found = Trainer(options("1ep")).find_batch_size(task, numbered());
  const std::int64_t most = kSampleCount / world_size_;
  EXPECT_EQ(found.batch_size, std::int64_t{1} << std::ilogb(static_cast<double>(most)));
  EXPECT_EQ(found.trials.front().batch_size, 2);
  EXPECT_GT(found.trials.back().samples_per_second, 0);
  EXPECT_EQ(files_in(path_ + "/run"), 0U) << "nothing is written";
}

TEST_F(TrainerEvaluationTest, ASearchStepsOnEachRankAloneAlsoWithOneCopyPerMachine) {
  struct Fused : Line {
    std::unique_ptr<torch::optim::Optimizer> configure_optimizer(
        torch::nn::LinearImpl& net) override {
      return std::make_unique<Adam>(net.parameters(), AdamOptions{.lr = 0.01});
    }
  };
  Fused task;
  TrainerOptions one_copy = options("1ep");
  one_copy.one_copy_per_machine = true;
  EXPECT_GE(Trainer(one_copy).find_batch_size(task, numbered()).batch_size, 2);
}

TEST_F(TrainerEvaluationTest, ASearchEndsBeforeMemoryDoes) {
  // A megabyte a sample, of which little is allowed.
  struct Large : Line {
    at::Tensor training_step(Model& model, Batch& batch, StepContext& step) override {
      held = at::zeros({batch.data.size(0), 1 << 18});
      return Line::training_step(model, batch, step);
    }
    at::Tensor held;
  };
  Large task;
  const FoundBatchSize found =
      Trainer(options("1ep"))
          .find_batch_size(task, numbered(), {.init_val = 1, .memory_fraction = 1e-4});
  EXPECT_GE(found.batch_size, 1);
  EXPECT_LT(found.batch_size, kSampleCount / world_size_);
  EXPECT_GT(found.trials.back().memory_bytes, 500'000);
  EXPECT_SAYS(message_of<Error>([&] {
                Trainer(options("1ep")).find_batch_size(task, numbered(), {.init_val = 0});
              }),
              "must be positive");
}

TEST_F(TrainerEvaluationTest, TheProfilerSaysWhereAStepsTimeGoes) {
  Line task;
  TrainerOptions profiled = options("6ba");
  profiled.profiler = Profiler::kSimple;
  const FitResult result = Trainer(profiled).fit(task, numbered());
  double sum = 0;
  for (const char* name :
       {"data_ms", "forward_ms", "backward_ms", "exchange_ms", "optimizer_ms", "other_ms"}) {
    const double* const value = find_metric(result.metrics, name);
    ASSERT_TRUE(value) << name;
    EXPECT_GE(*value, 0) << name;
    sum += *value;
  }
  EXPECT_GT(*find_metric(result.metrics, "forward_ms"), 0);
  EXPECT_GT(*find_metric(result.metrics, "optimizer_ms"), 0);
  EXPECT_GT(sum, 0);
}

}  // namespace
}  // namespace lockstep::testing
