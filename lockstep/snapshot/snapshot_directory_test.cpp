#include "lockstep/snapshot/snapshot_directory.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <torch/optim/adam.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/memory_limit_testing.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/snapshot/internal/gathered_state.h"
#include "lockstep/snapshot/internal/small_net.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/snapshot/state_dict.h"

namespace lockstep::testing {
namespace {

/// One process's training run.
struct Training {
  explicit Training(int hidden = 8) : net(hidden), optimizer(net->parameters(), 0.01) {}
  SmallNet net;
  torch::optim::Adam optimizer;
};

class SnapshotDirectoryTest : public ::testing::Test {
 protected:
  std::filesystem::path path() const { return directory_.path() / "runs" / "digits"; }
  std::filesystem::path file(std::int64_t step) const {
    return path() / SnapshotName{0, step}.file_name();
  }

  void save(Training& run, std::int64_t step) {
    SnapshotDirectory(path()).save(*run.net, run.optimizer, {.step = step});
  }
  void save_steps(Training& run, std::int64_t steps) {
    for (std::int64_t step = 1; step <= steps; ++step) {
      train(run.net, run.optimizer, 1);
      save(run, step);
    }
  }
  std::optional<LoadedSnapshot> load_latest(Training& run) {
    return SnapshotDirectory(path()).load_latest(*run.net, run.optimizer);
  }

  void damage(std::int64_t step) {
    std::string bytes = file_bytes(file(step));
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    put_file_bytes(file(step), bytes);
  }
  void truncate(std::int64_t step) {
    std::filesystem::resize_file(file(step), std::filesystem::file_size(file(step)) / 2);
  }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path())) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TemporaryDirectory directory_{std::filesystem::temp_directory_path(), "snapshot-directory-"};
};

TEST_F(SnapshotDirectoryTest, AResumedRunEndsLikeTheOneThatWasNot) {
  Training run;
  train(run.net, run.optimizer, 5);
  SnapshotDirectory(path()).save(*run.net, run.optimizer,
                                 {.epoch = 3, .step = 5, .extra = {{"best", at::ones({1})}}});
  train(run.net, run.optimizer, 5);

  at::manual_seed(99);
  Training resumed_run;
  const auto resumed = load_latest(resumed_run);
  ASSERT_TRUE(resumed);
  EXPECT_EQ(resumed->epoch, 3);
  EXPECT_EQ(resumed->step, 5);
  EXPECT_EQ(resumed->path, path() / "snapshot-e0003-s00000005.pt");
  EXPECT_TRUE(at::equal(resumed->extra.at(0).second, at::ones({1})));
  train(resumed_run.net, resumed_run.optimizer, 5);
  EXPECT_TRUE(same_weights(run.net, resumed_run.net));
}

TEST_F(SnapshotDirectoryTest, WithoutSnapshotsThereIsNothingToResume) {
  Training run;
  EXPECT_FALSE(load_latest(run));
  std::filesystem::create_directories(path());
  put_file_bytes(path() / "notes.txt", "hello");
  EXPECT_FALSE(load_latest(run));
}

TEST_F(SnapshotDirectoryTest, KeepsTheNewest) {
  Training run;
  save_steps(run, 4);
  EXPECT_EQ(files(), (std::vector<std::string>{"snapshot-e0000-s00000003.pt",
                                               "snapshot-e0000-s00000004.pt"}));
  EXPECT_THROW(SnapshotDirectory(path(), {.keep_last = 1}), UsageError);
}

TEST_F(SnapshotDirectoryTest, AFreshStartBesideLaterSnapshotsIsRefused) {
  Training run;
  save_steps(run, 4);
  SnapshotDirectory fresh(path());
  for (int time = 0; time < 2; ++time) {
    const std::string message =
        message_of<UsageError>([&] { fresh.save(*run.net, run.optimizer, {.step = 2}); });
    EXPECT_NE(message.find("the directory has snapshot-e0000-s00000004.pt of another run"),
              std::string::npos)
        << message;
  }
  EXPECT_EQ(files().size(), 2U);
  damage(4);
  ASSERT_EQ(fresh.load_latest(*run.net, run.optimizer)->step, 3);
  fresh.save(*run.net, run.optimizer, {.step = 3});
}

TEST_F(SnapshotDirectoryTest, WhatTheCheckRefusesIsNotLoaded) {
  Training run;
  save_steps(run, 1);
  train(run.net, run.optimizer, 1);
  Training same;
  load_state_dict(*same.net, state_dict(*run.net), "the other");
  const auto refuse = [](const LoadedSnapshot& found) {
    throw UsageError("refused " + std::to_string(found.step));
  };
  EXPECT_EQ(message_of<UsageError>(
                [&] { SnapshotDirectory(path()).load_latest(*run.net, run.optimizer, refuse); }),
            "refused 1");
  EXPECT_TRUE(same_weights(run.net, same.net));
}

TEST_F(SnapshotDirectoryTest, OneThatAnotherJobHasClaimedIsNotSavedTo) {
  Training run;
  SnapshotDirectory directory(path());
  directory.claim();
  directory.claim();
  SnapshotDirectory(path()).claim();  // Of one job.
  directory.save(*run.net, run.optimizer, {.step = 1});
  put_file_bytes(path() / ".lock", "another job\nprocess 7 on another machine\n");
  EXPECT_THROW(directory.save(*run.net, run.optimizer, {.step = 2}), UsageError);
}

TEST_F(SnapshotDirectoryTest, ADamagedSnapshotIsPassedOverWithAWarning) {
  for (const bool truncated : {false, true}) {
    Training run;
    save_steps(run, 2);
    truncated ? truncate(2) : damage(2);
    Training resumed_run;
    ::testing::internal::CaptureStderr();
    const auto resumed = load_latest(resumed_run);
    const std::string log = ::testing::internal::GetCapturedStderr();
    ASSERT_TRUE(resumed);
    EXPECT_EQ(resumed->step, 1);
    EXPECT_NE(log.find("warning: "), std::string::npos) << log;
    EXPECT_NE(log.find(file(2).string()), std::string::npos) << log;
  }
}

TEST_F(SnapshotDirectoryTest, DamagedSnapshotsDoNotPushOutWholeOnes) {
  Training run;
  save_steps(run, 3);
  damage(3);
  save(run, 4);
  EXPECT_EQ(files().front(), "snapshot-e0000-s00000002.pt");
  save(run, 5);
  EXPECT_EQ(files().front(), "snapshot-e0000-s00000004.pt");
}

TEST_F(SnapshotDirectoryTest, WithoutAnyWholeSnapshotNothingStartsFromScratch) {
  Training run;
  save_steps(run, 2);
  damage(1);
  truncate(2);
  const std::string message = message_of<CorruptFile>([&] { load_latest(run); });
  EXPECT_NE(message.find("none of its 2 snapshots"), std::string::npos) << message;
  EXPECT_NE(message.find("s00000002"), std::string::npos) << message;
}

TEST_F(SnapshotDirectoryTest, ASnapshotOfAnotherModelIsRefusedAndNothingIsChanged) {
  Training run(5);
  save_steps(run, 1);
  Training other;
  Training before;
  load_state_dict(*before.net, state_dict(*other.net));
  const std::string message = message_of<UsageError>([&] { load_latest(other); });
  EXPECT_NE(message.find("'first.weight' was saved as float[5, 4], and is float[8, 4] here"),
            std::string::npos)
      << message;
  EXPECT_TRUE(same_weights(other.net, before.net));
}

TEST_F(SnapshotDirectoryTest, AFileOfAnotherProgramIsRefused) {
  Training run;
  save_steps(run, 1);
  std::string bytes = file_bytes(file(1));
  bytes.resize(bytes.size() - 46);
  bytes[bytes.size() - 2] = 0;
  put_file_bytes(file(2), bytes);
  const std::string message = message_of<UsageError>([&] { load_latest(run); });
  EXPECT_NE(message.find("another program"), std::string::npos) << message;
}

TEST_F(SnapshotDirectoryTest, ANewerFormatIsRefused) {
  c10::impl::GenericDict about = make_dict();
  about.insert_or_assign("format", std::int64_t{2});
  c10::impl::GenericDict dict = make_dict();
  dict.insert_or_assign("lockstep", about);
  std::filesystem::create_directories(path());
  lockstep::save(file(1), dict);
  Training run;
  const std::string message = message_of<UsageError>([&] { load_latest(run); });
  EXPECT_NE(message.find("format 2"), std::string::npos) << message;
}

TEST_F(SnapshotDirectoryTest, APathThatIsNoDirectoryIsAnError) {
  std::filesystem::create_directories(path().parent_path());
  put_file_bytes(path(), "a file");
  Training run;
  EXPECT_NE(message_of<SystemError>([&] { load_latest(run); }).find(path().string()),
            std::string::npos);
  EXPECT_NE(message_of<SystemError>([&] { save(run, 1); }).find(path().string()),
            std::string::npos);
}

TEST_F(SnapshotDirectoryTest, AFullDiskLeavesEarlierSnapshotsWhole) {
  Training run;
  save_steps(run, 2);
  {
    const FullDisk full(6000);
    const std::string message = message_of<SystemError>([&] { save(run, 3); });
    EXPECT_NE(message.find("s00000003"), std::string::npos) << message;
    EXPECT_NE(message.find("free some space"), std::string::npos) << message;
  }
  EXPECT_EQ(files().size(), 2u);
  Training resumed_run;
  EXPECT_EQ(load_latest(resumed_run)->step, 2);
}

TEST_F(SnapshotDirectoryTest, AnAsynchronousSaveHoldsWhatTheStateWasAndTrainingGoesOn) {
  Training run;
  train(run.net, run.optimizer, 1);
  SnapshotDirectory directory(path(), {.asynchronous_saves = true});
  Training then;
  load_state_dict(*then.net, state_dict(*run.net));
  for (std::int64_t step = 1; step <= 4; ++step) {
    directory.save(*run.net, run.optimizer, {.step = step});
    load_state_dict(*then.net, state_dict(*run.net));
    train(run.net, run.optimizer, 1);
  }
  directory.wait();
  EXPECT_EQ(files(), (std::vector<std::string>{"snapshot-e0000-s00000003.pt",
                                               "snapshot-e0000-s00000004.pt"}));
  Training resumed_run;
  EXPECT_EQ(directory.load_latest(*resumed_run.net, resumed_run.optimizer)->step, 4);
  EXPECT_TRUE(same_weights(resumed_run.net, then.net));
  train(resumed_run.net, resumed_run.optimizer, 1);
  EXPECT_TRUE(same_weights(resumed_run.net, run.net));
}

/// A model of one tensor, which is put together when it is saved.
class MadeState final : public GatheredState {
 public:
  static constexpr std::int64_t kBytes = 64 << 20;

  TensorDict model() const override { return {{"weight", absent_}}; }
  c10::IValue optimizer() override { return make_dict(); }
  void gather(const TakeWhole& take) const override {
    take(absent_, [] { return at::empty({kBytes}, at::kByte); });
  }
  void read(const Snapshot&, const std::function<at::Tensor(const at::Tensor&)>&,
            const std::string&) override {}
  void take_over() override {}

 private:
  at::Tensor absent_ = absent_tensor({kBytes}, {1}, at::kByte);
};

TEST_F(SnapshotDirectoryTest, AnAsynchronousSaveHoldsWhatWasGatheredForItOnce) {
  const auto save_twice = [&] {
    SnapshotDirectory directory(path(), {.asynchronous_saves = true});
    MadeState state;
    for (const std::int64_t step : {1, 2}) {
      directory.save(state, {.step = step});
      directory.wait();
    }
  };
  EXPECT_TRUE(fits_in(MadeState::kBytes * 7 / 4, save_twice));
  EXPECT_EQ(files(), (std::vector<std::string>{"snapshot-e0000-s00000001.pt",
                                               "snapshot-e0000-s00000002.pt"}));
}

TEST_F(SnapshotDirectoryTest, TheEndOfTheObjectFinishesTheWrite) {
  Training run;
  SnapshotDirectory(path(), {.asynchronous_saves = true})
      .save(*run.net, run.optimizer, {.step = 1});
  EXPECT_EQ(load_latest(run)->step, 1);
}

TEST_F(SnapshotDirectoryTest, AFullDiskInTheBackgroundIsSaidByTheNextCall) {
  Training run;
  save_steps(run, 2);
  SnapshotDirectory directory(path(), {.asynchronous_saves = true});
  {
    const FullDisk full(6000);
    directory.save(*run.net, run.optimizer, {.step = 3});
    const std::string message =
        message_of<SystemError>([&] { directory.save(*run.net, run.optimizer, {.step = 4}); });
    EXPECT_NE(message.find("s00000003"), std::string::npos) << message;
    directory.save(*run.net, run.optimizer, {.step = 5});
    EXPECT_THROW(directory.wait(), SystemError);
  }
  EXPECT_EQ(files().size(), 2u);
  EXPECT_EQ(load_latest(run)->step, 2);
  directory.save(*run.net, run.optimizer, {.step = 6});
  directory.wait();
  EXPECT_EQ(load_latest(run)->step, 6);
}

TEST_F(SnapshotDirectoryTest, AnErrorInTheBackgroundThatNobodyTookIsLogged) {
  Training run;
  std::filesystem::create_directories(path().parent_path());
  put_file_bytes(path(), "a file");
  ::testing::internal::CaptureStderr();
  SnapshotDirectory(path(), {.asynchronous_saves = true})
      .save(*run.net, run.optimizer, {.step = 1});
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("save a snapshot in the background: "), std::string::npos) << log;
  EXPECT_NE(log.find(path().string()), std::string::npos) << log;
}

/// A process saves without end and is killed at a random instant, again and again. What it said to
/// have saved must be there.
class KilledSaver : public SnapshotDirectoryTest,
                    public ::testing::WithParamInterface<SnapshotDirectoryOptions> {};

TEST_P(KilledSaver, LeavesTheLastSnapshotWhole) {
  Training run;
  save_steps(run, 1);
  const auto seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  std::int64_t saved = 1;
  bool left_a_temporary = false;
  // On a loaded machine few of the instants fall into a save.
  for (int round = 0; round < 25 || (!left_a_temporary && round < 500); ++round) {
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const pid_t saver = ::fork();
    if (saver == 0) {
      SnapshotDirectory directory(path(), GetParam());
      for (std::int64_t step = saved + 1;; ++step) {
        directory.save(*run.net, run.optimizer, {.step = step});
        directory.wait();
        if (::write(pipe_ends[1], &step, sizeof(step)) != sizeof(step)) ::_exit(1);
      }
    }
    ::close(pipe_ends[1]);
    // Nothing is waited for but the random instant itself.
    ::poll(nullptr, 0, static_cast<int>(random() % 30));
    ::kill(saver, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(saver, &status, 0), saver);
    ASSERT_TRUE(WIFSIGNALED(status));
    while (::read(pipe_ends[0], &saved, sizeof(saved)) == sizeof(saved)) {
    }
    ::close(pipe_ends[0]);

    Training resumed_run;
    const auto resumed = load_latest(resumed_run);
    ASSERT_TRUE(resumed);
    // It may have been killed between the rename and the report.
    ASSERT_GE(resumed->step, saved);
    ASSERT_LE(resumed->step, saved + 1);
    saved = resumed->step;
    ASSERT_TRUE(same_weights(run.net, resumed_run.net));
    const std::vector<std::string> names = files();
    const auto temporaries = std::count_if(names.begin(), names.end(), [](const auto& name) {
      return !SnapshotName::parse(name).has_value();
    });
    ASSERT_LE(temporaries, 1);
    left_a_temporary = left_a_temporary || temporaries == 1;
  }
  EXPECT_TRUE(left_a_temporary) << "no kill hit a save: the instants are badly chosen";
  save(run, saved + 1);
  EXPECT_EQ(files().size(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Snapshots, KilledSaver,
                         ::testing::Values(SnapshotDirectoryOptions{},
                                           SnapshotDirectoryOptions{.asynchronous_saves = true}),
                         [](const auto& options) {
                           return std::string(options.param.asynchronous_saves ? "asynchronous"
                                                                               : "synchronous");
                         });

}  // namespace
}  // namespace lockstep::testing
