// Trainer: how long it trains, what it logs, keeps and refuses, and that it goes on as if nothing
// had been.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <torch/nn/modules/batchnorm.h>

#include "lockstep/os/files/remove_tree.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/snapshot/state_dict.h"
#include "tests/ranks/train/trainer_fixture.h"

namespace lockstep::testing {
namespace {

TEST_F(TrainerTest, TrainsAsLongAsItIsToAndLogsMeansOverAllSamples) {
  Line task;
  const FitResult result = Trainer(options("2ep")).fit(task, numbered(), numbered());
  EXPECT_EQ(result.end, FitEnd::kDone);
  EXPECT_EQ(result.time.epochs, 2);
  EXPECT_EQ(result.time.batches, 2 * steps_per_epoch());
  EXPECT_EQ(result.time.samples, 2 * kSampleCount);
  EXPECT_GT(result.time.seconds, 0);
  EXPECT_DOUBLE_EQ(*find_metric(result.metrics, "val_number"), (kSampleCount - 1) / 2.0)
      << "each sample counts once";
  EXPECT_TRUE(same_bits_everywhere({task.last.detach()}));
  group_.barrier();
  std::ifstream file(path_ + "/run/metrics.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_EQ(line.rfind("{\"step\": 3, \"epoch\": 0, \"samples\": ", 0), 0U) << line;
}

TEST_F(TrainerTest, LengthsInStepsAndSamples) {
  Line task;
  EXPECT_EQ(Trainer(options("5ba", "steps")).fit(task, numbered()).time.batches, 5);
  const FitResult samples = Trainer(options("20sp", "samples")).fit(task, numbered());
  EXPECT_GE(samples.time.samples, 20);
  EXPECT_LT(samples.time.samples, 20 + 2 * world_size_);
}

TEST_F(TrainerTest, GoesOnFromItsSnapshotAsIfNothingHadBeen) {
  Line whole;
  Trainer(options("7ba", "whole")).fit(whole, numbered());
  Line parts;
  Trainer(options("4ba", "parts")).fit(parts, numbered());
  group_.barrier();
  const FitResult result = Trainer(options("7ba", "parts")).fit(parts, numbered());
  EXPECT_EQ(result.time.batches, 7);
  EXPECT_TRUE(at::equal(parts.last, whole.last));
  group_.barrier();
  const FitResult again = Trainer(options("7ba", "parts")).fit(parts, numbered());
  EXPECT_EQ(again.time.batches, 7);
  EXPECT_EQ(again.time.samples, result.time.samples) << "it is complete";
}

TEST_F(TrainerTest, GoesOnInAndBetweenEpochsThatAreCutShort) {
  const auto cut = [&](const char* max_duration, const std::string& name) {
    TrainerOptions limited = options(max_duration, name);
    limited.limit_train_batches = 3;
    return limited;
  };
  Line whole;
  EXPECT_EQ(Trainer(cut("8ba", "whole")).fit(whole, numbered()).time.epochs, 2);
  for (const char* first : {"2ba", "3ba", "4ba"}) {
    Line parts;
    Trainer(cut(first, first)).fit(parts, numbered());
    group_.barrier();
    const FitResult result = Trainer(cut("8ba", first)).fit(parts, numbered());
    EXPECT_EQ(result.time.epochs, 2) << first;
    EXPECT_TRUE(at::equal(parts.last, whole.last)) << first;
  }
}

TEST_F(TrainerTest, CallbacksStopAndKeepTheBest) {
  Line task;
  Trainer trainer(options("50ep"));
  int validations = 0;
  trainer.add(LambdaCallback({.on_validation_end = [&](TrainerState&, const Metrics&) {
    task.val_loss = ++validations < 4 ? 1.0 / validations : 1;  // Better until the fourth.
  }}));
  trainer.add(EmaCallback({.decay = 0.5}));
  trainer.add(EarlyStopping({.patience = 2}));
  trainer.add(ModelCheckpoint({.save_top_k = 2}));
  trainer.add(LearningRateMonitor());
  const FitResult result = trainer.fit(task, numbered(), numbered());
  EXPECT_EQ(result.end, FitEnd::kStopped);
  EXPECT_EQ(result.time.epochs, 6);
  EXPECT_SAYS(result.reason, "val_loss did not improve on 0.333333 for 2 validations");
  EXPECT_NE(find_metric(result.metrics, "lr"), nullptr);
  group_.barrier();
  EXPECT_EQ(files_in(path_ + "/run/best"), 2U);
  EXPECT_EQ(files_in(path_ + "/run/snapshots"), 2U);
}

TEST_F(TrainerTest, TheBestWeightsAreTheAveragesWhereThoseAreValidated) {
  Line task;
  Trainer trainer(options("1ep"));
  at::Tensor validated;
  trainer.add(EmaCallback({.decay = 0.9}));
  trainer.add(LambdaCallback({.on_validation_end = [&](TrainerState& state, const Metrics&) {
    validated = state.module.parameters().front().detach().clone();
  }}));
  trainer.add(ModelCheckpoint());
  trainer.fit(task, numbered(), numbered());
  group_.barrier();
  ASSERT_EQ(files_in(path_ + "/run/best"), 1U);
  const auto file = std::filesystem::directory_iterator(path_ + "/run/best")->path();
  EXPECT_TRUE(at::equal(read_state_dict(file).front().second, validated));
}

TEST_F(TrainerTest, AValidationThatIsMadeAgainKeepsItsBest) {
  for (int time = 0; time < 2; ++time) {
    Line task;
    Trainer trainer(options("2ep"));
    trainer.add(LambdaCallback(
        {.on_train_epoch_end =
             [&](TrainerState& state) {
               task.val_loss = 1.0 / static_cast<double>(2 + state.epoch);  // Its name rounds 1/3.
             },
         .on_validation_end =
             [&](TrainerState& state, const Metrics&) {
               // Before the snapshot.
               if (time == 0 && state.epoch == 1) throw Error("killed");
             }}));
    trainer.add(ModelCheckpoint({.save_top_k = 5}));
    const auto fit = [&] { trainer.fit(task, numbered(), numbered()); };
    EXPECT_EQ(message_of<Error>(fit), time == 0 ? "killed" : "no error");
    group_.barrier();
    EXPECT_EQ(files_in(path_ + "/run/best"), 2U);
    group_.barrier();
  }
}

TEST_F(TrainerTest, ModelCheckpointKnowsItsFilesByTheirMetricAndTraining) {
  struct TwoLosses : Line {
    void validation_step(Model&, Batch&, StepContext& step) override {
      step.log("loss", val_loss * 10);
      step.log("val-loss", val_loss);
    }
  };
  const std::string root = path_ + "/run";
  const ModelCheckpoint plain({.monitor = "loss"});
  const ModelCheckpoint named({.monitor = "val-loss"});
  std::string best[2];
  for (const int training : {0, 1}) {
    TwoLosses task;
    Trainer trainer(options("3ep"));
    trainer.add(LambdaCallback({.on_train_epoch_end = [&](TrainerState& state) {
      task.val_loss = 1.0 + training - 0.1 * static_cast<double>(state.epoch);
    }}));
    trainer.add(named);
    trainer.add(plain);
    trainer.fit(task, numbered(), numbered());
    group_.barrier();
    best[training] = plain.best_model_path(root);
    EXPECT_TRUE(best[training].ends_with(training == 0 ? "-loss=8.pt" : "-loss=18.pt"))
        << best[training] << ": no file of a better training that was here before";
    EXPECT_TRUE(named.best_model_path(root).ends_with(training == 0 ? "-val-loss=0.8.pt"
                                                                    : "-val-loss=1.8.pt"))
        << named.best_model_path(root);
    EXPECT_EQ(files_in(root + "/best"), training == 0 ? 2U : 4U);
    group_.barrier();
    std::error_code error;
    if (rank_ == 0) remove_tree(root + "/snapshots", error);
    EXPECT_FALSE(error);
    group_.barrier();
  }
  EXPECT_TRUE(std::filesystem::exists(best[0])) << "another training's stays";
}

TEST_F(TrainerTest, LimitsAreOfBatchesHoweverManyAreAccumulated) {
  Line task;
  TrainerOptions limited = options("2ep");
  limited.limit_train_batches = 3;
  limited.gradient_accumulation_steps = 2;
  const FitResult result = Trainer(limited).fit(task, numbered());
  EXPECT_EQ(result.time.batches, 4) << "of two and one batch, twice";
  EXPECT_EQ(result.time.samples, 2 * 3 * 2 * world_size_);
}

TEST_F(TrainerTest, AnEpochOfFewerBatchesThanAreAccumulatedIsAStep) {
  Line task;
  TrainerOptions short_epochs = options("2ba");
  short_epochs.limit_train_batches = 3;
  short_epochs.gradient_accumulation_steps = 4;
  const FitResult result = Trainer(short_epochs).fit(task, numbered());
  EXPECT_EQ(result.time.batches, 2);
  EXPECT_EQ(result.time.epochs, 2);
}

TEST_F(TrainerTest, ShortRunsAndLimits) {
  Line task;
  TrainerOptions quick = options("9ep", "quick");
  quick.fast_dev_run = 2;
  EXPECT_EQ(Trainer(quick).fit(task, numbered(), numbered()).time.batches, 2);
  EXPECT_FALSE(std::filesystem::exists(path_ + "/quick"));
  TrainerOptions limited = options("3ep", "limited");
  limited.limit_train_batches = 2;
  limited.limit_val_batches = 1;
  EXPECT_EQ(Trainer(limited).fit(task, numbered(), numbered()).time.batches, 6);
  TrainerOptions same = options("3ep", "same");
  same.overfit_batches = 1;
  same.log_every_n_steps = 1;
  const FitResult result = Trainer(same).fit(task, numbered());
  EXPECT_DOUBLE_EQ(*find_metric(result.metrics, "number"), (2 * world_size_ - 1) / 2.0);
}

TEST_F(TrainerTest, AnInfiniteLossEndsItBeforeASnapshot) {
  Line task;
  task.bad_batch = 1;
  TrainerOptions saving = options("3ep");
  saving.save_interval = "1ba";
  const std::string message =
      message_of<Error>([&] { Trainer(saving).fit(task, numbered(), numbered()); });
  EXPECT_SAYS(message, "the training's loss is not finite on rank 0 in step 2");
  EXPECT_EQ(files_in(path_ + "/run/snapshots"), 1U);
  saving.non_finite = NonFinite::kSkip;
  saving.resume = false;
  saving.directory = path_ + "/skips";
  EXPECT_EQ(Trainer(saving).fit(task, numbered()).time.epochs, 3);
}

TEST_F(TrainerTest, ParametersThatAreNotFiniteAreNotSaved) {
  Line task;
  TrainerOptions saving = options("3ep");
  saving.save_interval = "1ba";
  Trainer trainer(saving);
  trainer.add(LambdaCallback({.on_train_batch_end = [](TrainerState& state) {
    const at::NoGradGuard no_grad;
    if (state.time.batches == 2) state.module.parameters().front().fill_(1.0 / 0.0);
  }}));
  const std::string message = message_of<Error>([&] { trainer.fit(task, numbered()); });
  EXPECT_SAYS(message, "the parameter weight is not finite after step 2, so no snapshot is saved");
  EXPECT_EQ(files_in(path_ + "/run/snapshots"), 1U);
}

TEST_F(TrainerTest, EarlyStoppingGoesOnCounting) {
  Line task;
  const auto fit = [&](const char* max_duration) {
    Trainer trainer(options(max_duration));
    trainer.add(EarlyStopping({.patience = 3}));
    return trainer.fit(task, numbered(), numbered());
  };
  EXPECT_EQ(fit("2ep").end, FitEnd::kDone);
  group_.barrier();
  const FitResult result = fit("50ep");
  EXPECT_EQ(result.end, FitEnd::kStopped);
  EXPECT_EQ(result.time.epochs, 4);
}

TEST_F(TrainerTest, OneThatWasStoppedStaysStopped) {
  for (int time = 0; time < 3; ++time) {
    Line task;
    Trainer trainer(options("50ep"));
    trainer.add(EarlyStopping({.patience = 2}));
    const FitResult result = trainer.fit(task, numbered(), numbered());
    EXPECT_EQ(result.end, FitEnd::kStopped);
    EXPECT_EQ(result.time.epochs, 3) << "no further interval is trained";
    EXPECT_SAYS(result.reason, "for 2 validations");
    group_.barrier();
  }
  Line task;
  Trainer patient(options("50ep"));
  patient.add(EarlyStopping({.patience = 4}));
  EXPECT_EQ(patient.fit(task, numbered(), numbered()).time.epochs, 5);
}

TEST_F(TrainerTest, AverageLeavesOutStepsThatWereSkipped) {
  Line task;
  task.bad_batch = 1;
  TrainerOptions skipping = options("2ep");
  skipping.non_finite = NonFinite::kSkip;
  Trainer trainer(skipping);
  trainer.add(EmaCallback());
  trainer.fit(task, numbered());
  group_.barrier();
  const auto snapshot = SnapshotDirectory(path_ + "/run/snapshots").read_latest();
  ASSERT_TRUE(snapshot);
  const c10::IValue ema = find_value(find_value(snapshot->values, "registered"), "ema");
  EXPECT_EQ(find_value(ema, "n_averaged").toTensor().item<std::int64_t>(),
            2 * (steps_per_epoch() - 1));
}

TEST_F(TrainerTest, SamplesPerSecondAreThoseOfTheTrainingAlone) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  struct Slow : Line {
    void validation_step(Model& model, Batch& batch, StepContext& step) override {
      const auto began = Clock::now();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      Line::validation_step(model, batch, step);
      validated += Seconds(Clock::now() - began).count();
    }
    double validated = 0;
  };
  Slow task;
  TrainerOptions often = options("2ep");
  often.val_check_interval = "1ba";
  Trainer trainer(often);
  double trained = 0;
  std::int64_t samples = 0;
  trainer.add(LambdaCallback({.on_log = [&](TrainerState& state, Metrics& metrics) {
    const auto newer = static_cast<double>(state.time.samples - samples);
    samples = state.time.samples;
    trained += newer / *find_metric(metrics, "samples_per_second");
  }}));
  const auto began = Clock::now();
  trainer.fit(task, numbered(), numbered());
  if (rank_ == 0) {  // By its clock.
    EXPECT_LE(trained + task.validated, Seconds(Clock::now() - began).count());
    EXPECT_GT(trained, 0);
  }
}

TEST_F(TrainerTest, RowsOfStepsThatWereLostStandOnceAfterAResume) {
  TrainerOptions logged = options("7ba");
  logged.logger = MetricLogger::kCsv;
  logged.log_every_n_steps = 1;
  logged.save_interval = "3ba";
  for (int time = 0; time < 2; ++time) {
    Line task;
    Trainer trainer(logged);
    trainer.add(LambdaCallback({.on_train_batch_end = [&](TrainerState& state) {
      if (time == 0 && state.time.batches == 6) throw Error("killed");
    }}));
    const auto fit = [&] { trainer.fit(task, numbered()); };
    EXPECT_EQ(message_of<Error>(fit), time == 0 ? "killed" : "no error");
    group_.barrier();
  }
  std::vector<std::string> steps;
  std::ifstream table(path_ + "/run/metrics.csv");
  for (std::string line; std::getline(table, line);)
    steps.push_back(line.substr(0, line.find(',')));
  EXPECT_EQ(steps, (std::vector<std::string>{"step", "1", "2", "3", "4", "5", "6", "7"}));
  std::ifstream file(path_ + "/run/metrics.jsonl");
  std::vector<std::string> resumed;
  for (std::string line; std::getline(file, line);) {
    if (line.find("\"resumed\": true") != std::string::npos) resumed.push_back(line);
  }
  ASSERT_EQ(resumed.size(), 1U);
  EXPECT_EQ(resumed[0].rfind("{\"step\": 3, ", 0), 0U) << resumed[0];
}

TEST_F(TrainerTest, MetricsThatCannotBeWrittenEndItWithASnapshot) {
  for (const bool is_validation : {false, true}) {
    Line whole;
    const std::string name = is_validation ? "validation" : "training";
    Trainer(options("7ba", name + "-whole")).fit(whole, numbered());
    Line task;
    TrainerOptions full = options("7ba", name);
    if (is_validation) full.log_every_n_steps = 1000;
    full.val_check_interval = "3ba";
    const std::filesystem::path root = full.directory;
    if (rank_ == 0) {
      std::filesystem::create_directories(root);
      std::filesystem::create_symlink("/dev/full", root / "metrics.jsonl");
    }
    group_.barrier();
    const auto fit = [&] {
      Trainer trainer(full);
      if (is_validation) {
        trainer.fit(task, numbered(), numbered());
      } else {
        trainer.fit(task, numbered());
      }
    };
    if (rank_ == 0) {
      EXPECT_SAYS(message_of<SystemError>(fit), "metrics.jsonl");
    } else {
      const auto error = error_of<PeerFailed>(fit);
      EXPECT_EQ(error.rank(), 0);
      EXPECT_SAYS(error.what(), "write metrics: failed on rank 0");
    }
    group_.barrier();
    EXPECT_EQ(SnapshotDirectory(root / "snapshots").newest()->step, 3);
    if (rank_ == 0) std::filesystem::remove(root / "metrics.jsonl");
    group_.barrier();
    EXPECT_EQ(Trainer(full).fit(task, numbered()).time.batches, 7);
    EXPECT_TRUE(at::equal(task.last, whole.last));
  }
}

TEST_F(TrainerTest, AnEpochThatIsFinishedIsNotContinuedWithOtherBatches) {
  const auto fit = [&](const char* max_duration, std::int64_t batch_size) {
    Line task;
    TrainerOptions cut = options(max_duration);
    cut.batch_size = batch_size;
    cut.limit_train_batches = 3;
    const FitResult result = Trainer(cut).fit(task, numbered());
    group_.barrier();
    return result.time;
  };
  const TrainingTime first = fit("1ep", 1);
  EXPECT_EQ(first.samples, 3 * world_size_);
  const TrainingTime second = fit("2ep", 3);
  EXPECT_EQ(second.epochs, 2);
  const std::int64_t samples = std::min<std::int64_t>(kSampleCount, 3 * 3 * world_size_);
  EXPECT_EQ(second.samples - first.samples, samples) << "an epoch of its own";
}

TEST_F(TrainerTest, ValidationLeavesEachModuleInItsMode) {
  struct PartlyFrozen : torch::nn::Module {
    PartlyFrozen() { norm->eval(); }
    at::Tensor forward(const at::Tensor& input) { return line(norm(input)); }
    torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(3));
    torch::nn::Linear line = register_module("line", torch::nn::Linear(3, 1));
  };
  struct Frozen : Task<PartlyFrozen> {
    std::shared_ptr<PartlyFrozen> configure_model() override {
      return net = std::make_shared<PartlyFrozen>();
    }
    std::unique_ptr<torch::optim::Optimizer> configure_optimizer(PartlyFrozen& made) override {
      return std::make_unique<torch::optim::Adam>(made.parameters(), 0.01);
    }
    at::Tensor training_step(Model& model, Batch& batch, StepContext&) override {
      EXPECT_TRUE(model->is_training());
      EXPECT_TRUE(model->line->is_training());
      EXPECT_FALSE(model->norm->is_training());
      return at::mse_loss(model(batch.data), batch.target);
    }
    void validation_step(Model& model, Batch&, StepContext& step) override {
      EXPECT_FALSE(model->line->is_training());
      step.log("val_loss", 1.0);
    }
    std::shared_ptr<PartlyFrozen> net;
  };
  Frozen task;
  Trainer(options("3ep")).fit(task, numbered(), numbered());
  EXPECT_TRUE(at::equal(task.net->norm->running_mean, at::zeros({3})));
}

TEST_F(TrainerTest, AFailingCallbackDoesNotHideTheCause) {
  struct Failing : Callback {
    void on_exception(TrainerState&, const std::exception&) override { throw Error("second"); }
  };
  Line task;
  task.bad_batch = 0;
  Trainer trainer(options("1ep"));
  trainer.add(Failing());
  EXPECT_SAYS(message_of<Error>([&] { trainer.fit(task, numbered()); }), "the training's loss");
}

TEST_F(TrainerTest, RefusesWhatCannotWork) {
  const auto message = [&](auto change) {
    TrainerOptions wrong = options("1ep");
    change(wrong);
    return message_of<UsageError>([&] { Trainer trainer(wrong); });
  };
  EXPECT_SAYS(message([](TrainerOptions& o) { o.max_duration = "10"; }), "max_duration is '10'");
  EXPECT_SAYS(message([](TrainerOptions& o) { o.batch_size = 0; }), "batch_size is 0");
  EXPECT_SAYS(message([](TrainerOptions& o) { o.directory.clear(); }), "directory is empty");
  Line task;
  Trainer without(options("1ep"));
  without.add(ModelCheckpoint());
  EXPECT_SAYS(message_of<UsageError>([&] { without.fit(task, numbered()); }),
              "no validation, whose metrics it needs");
  Trainer(options("1ba", "used")).fit(task, numbered());
  group_.barrier();
  TrainerOptions anew = options("1ba", "used");
  anew.resume = false;
  EXPECT_SAYS(message_of<UsageError>([&] { Trainer(anew).fit(task, numbered()); }),
              "resume is false, and ");
  Trainer stopping(options("1ep"));
  stopping.add(EarlyStopping({.monitor = "val_acc"}));
  EXPECT_SAYS(message_of<UsageError>([&] { stopping.fit(task, numbered(), numbered()); }),
              "the validation has no metric 'val_acc'; it has val_number, val_loss");
}

}  // namespace
}  // namespace lockstep::testing
