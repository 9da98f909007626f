// What Accelerator saves and goes on from.
#include <filesystem>
#include <fstream>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/os/files/remove_tree.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/train/accelerator.h"
#include "tests/ranks/train/accelerator_fixture.h"

namespace lockstep::testing {
namespace {

TEST_F(AcceleratorState, GoesOnFromASavedStateAsIfNothingHadBeen) {
  const AcceleratorOptions options{.precision = Precision::kFloat16,
                                   .gradient_accumulation_steps = 2,
                                   .seed = 5,
                                   .directory = path_};
  for (const std::int64_t steps : {1, 2, 9}) {
    SCOPED_TRACE(steps);
    Accelerator whole(options);
    AcceleratedTraining undisturbed(whole);
    EXPECT_FALSE(whole.load_state(path_ + "/none"));
    undisturbed.train(4, 1'000'000, [&] {
      if (whole.steps() != steps) return;
      whole.save_state();
      whole.wait_for_everyone();
    });

    Accelerator resumed(options);
    AcceleratedTraining training(resumed);
    ASSERT_TRUE(resumed.load_state());
    EXPECT_EQ(resumed.steps(), steps);
    training.train(4, 1'000'000);
    for (std::size_t i = 0; i < training.net->parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(training.net->parameters()[i], undisturbed.net->parameters()[i]));
    }
    EXPECT_TRUE(at::equal(training.average.state_dict().back().second,
                          undisturbed.average.state_dict().back().second));
    EXPECT_EQ(training.seen.item<std::int64_t>(), 4 * 41) << "each sample of each epoch once";
    EXPECT_EQ(training.adam.param_groups().front().options().get_lr(),
              undisturbed.adam.param_groups().front().options().get_lr());
    resumed.wait_for_everyone();
    std::error_code error;
    if (rank_ == 0) remove_tree(path_, error);
    EXPECT_FALSE(error);
    resumed.wait_for_everyone();
  }
}

TEST_F(AcceleratorState, SavesInTheBackgroundAndWaitsForIt) {
  Accelerator accelerator({.directory = path_, .asynchronous_saves = true});
  AcceleratedTraining training(accelerator);
  training.train(1, 1);
  accelerator.save_state();
  const at::Tensor saved = training.net->parameters()[0].detach().clone();
  training.train(2, 2);
  accelerator.wait_for_saves();
  accelerator.wait_for_everyone();
  EXPECT_FALSE(at::equal(training.net->parameters()[0], saved));

  Accelerator resumed({.directory = path_});
  AcceleratedTraining other(resumed);
  ASSERT_TRUE(resumed.load_state());
  EXPECT_EQ(resumed.steps(), 1);
  EXPECT_TRUE(at::equal(other.net->parameters()[0], saved));
  resumed.wait_for_everyone();
  if (rank_ == 0) {
    std::error_code error;
    remove_tree(path_, error);
    std::ofstream(path_) << "no directory";
  }
  accelerator.save_state();
  if (rank_ == 0) {
    EXPECT_SAYS(message_of<SystemError>([&] { accelerator.wait_for_saves(); }), path_);
    std::filesystem::remove(path_);
  }
  accelerator.wait_for_everyone();
}

TEST_F(AcceleratorState, WhatOneRankCannotSaveIsAnErrorOnAll) {
  struct Failing {
    TensorDict state_dict() const {
      if (fails) throw Error("no state");
      return {{"a", at::ones({1})}};
    }
    void load_state_dict(const TensorDict&) const {}
    bool fails = false;
  };
  Accelerator accelerator({.directory = path_});
  AcceleratedTraining training(accelerator);
  Failing failing{.fails = rank_ == world_size_ - 1};
  accelerator.register_for_checkpointing("failing", failing);
  training.train(1, 1);
  expect_failure_of<Error>(world_size_ - 1, "no state", [&] { accelerator.save_state(); });
  failing.fails = false;
  accelerator.save_state();
  accelerator.wait_for_everyone();
  EXPECT_TRUE(accelerator.load_state());
  accelerator.wait_for_everyone();
}

TEST_F(AcceleratorState, AResumedTrainingSavesInItsOtherFoldersToo) {
  const std::string best = path_ + "/best";
  {
    Accelerator first({.directory = path_});
    AcceleratedTraining training(first);
    training.train(9, 1);
    first.save_state(best);
    training.train(9, 1);
    first.save_state();
    first.wait_for_everyone();
  }
  {
    Accelerator resumed({.directory = path_});
    AcceleratedTraining training(resumed);
    ASSERT_TRUE(resumed.load_state());
    training.train(9, 1);
    resumed.save_state(best);
    resumed.wait_for_everyone();
    EXPECT_TRUE(resumed.load_state(best));
    EXPECT_EQ(resumed.steps(), 3);
  }
  Accelerator other({.directory = path_ + "/other"});
  AcceleratedTraining training(other);
  training.train(9, 1);
  expect_failure_of<Error>(0, "of another run", [&] { other.save_state(best); });
  other.wait_for_everyone();
}

TEST_F(AcceleratorState, ASnapshotThatDoesNotCountBatchesIsLoaded) {
  Accelerator saving({.directory = path_});
  AcceleratedTraining saved(saving);
  DataCursor cursor;
  saved.train(1, 3, [&] {
    cursor = saved.loader.cursor();
    if (saving.steps() == 3) saving.save_state();
  });
  if (rank_ == 0) {
    const std::filesystem::path file = path_ + "/snapshot-e0000-s00000003.pt";
    const Snapshot snapshot = load_snapshot(file);
    for (const c10::IValue& one : snapshot.values.toGenericDict().at("data").toListRef()) {
      EXPECT_EQ(one.toGenericDict().erase("batches"), 1U);
    }
    save_snapshot(file, snapshot);
  }
  saving.wait_for_everyone();
  Accelerator loading({.directory = path_});
  AcceleratedTraining loaded(loading);
  ASSERT_TRUE(loading.load_state());
  EXPECT_EQ(loaded.loader.cursor().batches, 3);
  EXPECT_EQ(loaded.loader.cursor(), cursor);
  loading.wait_for_everyone();
}

}  // namespace
}  // namespace lockstep::testing
