// Trainer: how long it trains, what it logs, keeps and refuses, and that it goes on as if nothing
// had been.
#include <fstream>
#include <limits>

#include "lockstep/snapshot/state_dict.h"
#include "tests/ranks/trainer_fixture.h"

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
  EXPECT_SAYS(result.reason, "val_loss has got no better than 0.333333 for 2 validations");
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
    task.val_loss = 1.0 / 3;  // Which its name rounds.
    Trainer trainer(options("2ep"));
    trainer.add(ModelCheckpoint());
    trainer.fit(task, numbered(), numbered());
    group_.barrier();
    EXPECT_EQ(files_in(path_ + "/run/best"), 1U);
    group_.barrier();
    if (rank_ == 0) std::filesystem::remove_all(path_ + "/run/snapshots");
    group_.barrier();
  }
}

TEST_F(TrainerTest, LimitsAreOfBatchesHoweverManyAreAccumulated) {
  Line task;
  TrainerOptions limited = options("2ep");
  limited.limit_train_batches = 3;
  limited.accumulate_grad_batches = 2;
  const FitResult result = Trainer(limited).fit(task, numbered());
  EXPECT_EQ(result.time.batches, 4) << "of two and one batch, twice";
  EXPECT_EQ(result.time.samples, 2 * 3 * 2 * world_size_);
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
  saving.default_root_dir = path_ + "/skips";
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
  EXPECT_SAYS(message, "the parameter weight is not finite after step 2, and no snapshot is made");
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
  EXPECT_SAYS(message([](TrainerOptions& o) { o.precision = "64"; }), "choose '32-true'");
  EXPECT_SAYS(message([](TrainerOptions& o) { o.batch_size = 0; }), "batch_size is 0");
  EXPECT_SAYS(message([](TrainerOptions& o) { o.gradient_clip_algorithm = "l2"; }), "'norm'");
  Line task;
  Trainer without(options("1ep"));
  without.add(ModelCheckpoint());
  EXPECT_SAYS(message_of<UsageError>([&] { without.fit(task, numbered()); }),
              "there is no validation");
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
