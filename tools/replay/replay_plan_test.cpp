#include "tools/replay/replay_plan.h"

#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/snapshot/internal/snapshot_list.h"
#include "lockstep/snapshot/sharded/snapshot_manifest.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class ReplayPlanTest : public ::testing::Test {
 protected:
  // Hashes of steps 1 to 30, which `program` has made.
  void log_steps(const std::string& program = "/proc/self/exe", const std::string& folder = "/") {
    HashLog log(run_.path());
    log.begin({.step = 0,
               .ranks = 2,
               .logical_shards = 8,
               .kernels = "LibTorch=2 kernels=AVX512",
               .directory = "/runs/a",
               .program = {.path = program, .arguments = {}, .working_directory = folder}});
    for (std::int64_t step = 1; step <= 30; ++step) log.add(step, hashes_of(step));
  }
  static TensorHashes hashes_of(std::int64_t step) {
    return {{"weight", static_cast<std::uint64_t>(step)}, {"bias", 7}};
  }
  static LoggedHashes steps(std::int64_t first, std::int64_t last) {
    LoggedHashes made;
    made.runs.emplace_back().kernels = "LibTorch=2 kernels=AVX512";
    for (std::int64_t step = first; step <= last; ++step) {
      made.steps[step] = {.run = 0, .tensors = hashes_of(step)};
    }
    return made;
  }
  void add_snapshot(const std::string& name) const {
    fs::create_directories(run_.path() / "snapshots");
    std::ofstream(run_.path() / "snapshots" / name) << name;
  }
  std::string message_of(std::int64_t step) const {
    try {
      plan_replay(run_.path(), step);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }

  const TemporaryDirectory run_{fs::temp_directory_path(), "replay-plan-"};
};

TEST_F(ReplayPlanTest, BeginsWithTheNewestSnapshotBeforeTheStep) {
  log_steps();
  EXPECT_FALSE(plan_replay(run_.path(), 5).snapshot);
  add_snapshot("snapshot-e0000-s00000010.pt");
  add_snapshot("snapshot-e0001-s00000020.pt");
  for (const auto& [step, expected] : {std::pair{11, 10}, {20, 10}, {21, 20}, {30, 20}}) {
    const ReplayPlan plan = plan_replay(run_.path(), step);
    ASSERT_TRUE(plan.snapshot) << step;
    EXPECT_EQ(plan.snapshot->step, expected) << step;
  }
  EXPECT_FALSE(plan_replay(run_.path(), 10).snapshot);
}

TEST_F(ReplayPlanTest, RefusesWhatIsNotThere) {
  EXPECT_NE(message_of(3).find("has no hashes.jsonl"), std::string::npos);
  log_steps();
  EXPECT_NE(message_of(31).find("step 31 is not in the log of hashes; its last is 30; choose it"),
            std::string::npos);
}

TEST_F(ReplayPlanTest, RefusesAProgramThatIsGone) {
  log_steps("/nowhere/train");
  EXPECT_NE(message_of(3).find("the program of the run, /nowhere/train, does not exist"),
            std::string::npos);
  log_steps("/proc/self/exe", "/nowhere");
  EXPECT_NE(message_of(3).find("the working directory of the run, /nowhere, does not exist"),
            std::string::npos);
}

TEST_F(ReplayPlanTest, WhatIsDeletedInItsFolderStaysInTheRun) {
  log_steps();
  const fs::path sharded = run_.path() / "snapshots" / "snapshot-e0001-s00000020";
  fs::create_directories(sharded);
  std::ofstream(sharded / kManifestName) << "{}";
  add_snapshot("snapshot-e0000-s00000010.pt");
  for (const std::int64_t step : {15, 25}) {
    const TemporaryDirectory temporary(fs::temp_directory_path(), "replay-folder-");
    const ReplayPlan plan = plan_replay(run_.path(), step);
    ASSERT_TRUE(plan.snapshot);
    ASSERT_EQ(plan.snapshot->sharded, step == 25);
    make_replay_folder(plan, run_.path(), temporary.path());
    const fs::path there = temporary.path() / "snapshots" / plan.snapshot->file_name();
    ASSERT_TRUE(fs::exists(there)) << there;
    if (step == 25) {
      ASSERT_TRUE(fs::exists(there / kManifestName));
    }
    delete_snapshot(temporary.path() / "snapshots", *plan.snapshot);  // As the program does.
    EXPECT_FALSE(fs::exists(there));
  }
  EXPECT_TRUE(fs::exists(sharded / kManifestName));
  EXPECT_TRUE(fs::exists(run_.path() / "snapshots" / "snapshot-e0000-s00000010.pt"));
}

TEST_F(ReplayPlanTest, TheVerdictNamesStepAndTensor) {
  log_steps();
  add_snapshot("snapshot-e0000-s00000010.pt");
  const ReplayPlan plan = plan_replay(run_.path(), 12);
  const ReplayVerdict good = judge_replay(plan, steps(11, 12), 3);
  EXPECT_TRUE(good.agrees);
  EXPECT_EQ(
      good.line,
      "replay: step 12 matches the log bit for bit: 2 logged steps, 2 tensors on 3 ranks, from "
      "snapshot-e0000-s00000010.pt");
  LoggedHashes bad = steps(11, 12);
  bad.steps[11].tensors[1].hash = 8;
  const ReplayVerdict other = judge_replay(plan, bad, 1);
  EXPECT_FALSE(other.agrees);
  EXPECT_EQ(other.line,
            "replay: step 11 differs from the log in 1 of 2 tensors (first 'bias') on 1 rank, from "
            "snapshot-e0000-s00000010.pt");
  bad.runs[0].kernels = "LibTorch=2 kernels=AVX2";
  EXPECT_TRUE(judge_replay(plan, bad, 1)
                  .line.ends_with("; the run had kernels=AVX512, this replay kernels=AVX2"));
  EXPECT_THROW(judge_replay(plan, steps(11, 11), 1), Error);
}

}  // namespace
}  // namespace lockstep
