#include "tools/snapshot/snapshot_options.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using SnapshotAction = SnapshotOptions::Action;

TEST(SnapshotOptions, TakesPathsAndFlagsInAnyOrder) {
  const SnapshotOptions list = parse_snapshot_options({"ls", "--json", "runs"});
  EXPECT_EQ(list.action, SnapshotAction::kList);
  EXPECT_EQ(list.paths, std::vector<std::string>{"runs"});
  EXPECT_TRUE(list.json);
  const SnapshotOptions verify = parse_snapshot_options({"verify", "a", "b", "c"});
  EXPECT_EQ(verify.action, SnapshotAction::kVerify);
  EXPECT_EQ(verify.paths.size(), 3u);
  const SnapshotOptions prune =
      parse_snapshot_options({"prune", "runs", "--keep", "3", "--dry-run"});
  EXPECT_EQ(prune.action, SnapshotAction::kPrune);
  EXPECT_EQ(prune.keep, 3);
  EXPECT_TRUE(prune.dry_run);
}

TEST(SnapshotOptions, TheTargetsNameSaysTheFormat) {
  const auto format = [](std::vector<std::string> words) {
    words.insert(words.begin(), "export");
    return parse_snapshot_options(words).format;
  };
  EXPECT_EQ(format({"a.pt", "b.safetensors"}), "safetensors");
  EXPECT_EQ(format({"a.pt", "b.pt"}), "pt");
  EXPECT_EQ(format({"a.pt", "b", "--format=accelerate"}), "accelerate");
  EXPECT_THROW(format({"a.pt", "b"}), UsageError);
  EXPECT_THROW(format({"a.pt", "b.pt", "--format=onnx"}), UsageError);
}

TEST(SnapshotOptions, HelpsWhereverItIsAsked) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, std::vector<std::string>{"help"},
        std::vector<std::string>{"ls", "-h"}, std::vector<std::string>{"prune", "--help"}}) {
    EXPECT_EQ(parse_snapshot_options(arguments).action, SnapshotAction::kHelp);
  }
}

TEST(SnapshotOptions, WhatCannotWorkIsRefusedWithTheCure) {
  const auto refusal = [](const std::vector<std::string>& arguments) {
    try {
      parse_snapshot_options(arguments);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("taken");
  };
  EXPECT_NE(refusal({}).find("ls, verify, show"), std::string::npos);
  EXPECT_NE(refusal({"list"}).find("unknown action 'list'"), std::string::npos);
  EXPECT_NE(refusal({"ls"}).find("as in: lockstep snapshot ls"), std::string::npos);
  EXPECT_NE(refusal({"show", "a", "b"}).find("it takes 1 path;"), std::string::npos);
  EXPECT_NE(refusal({"diff", "a"}).find("2 paths"), std::string::npos);
  EXPECT_NE(refusal({"prune", "runs"}).find("how many are to stay"), std::string::npos);
  EXPECT_NE(refusal({"prune", "runs", "--keep=0"}).find("--keep"), std::string::npos);
  EXPECT_NE(refusal({"prune", "runs", "--keep=1", "--json"}).find("--json"), std::string::npos);
  EXPECT_NE(refusal({"export", "a", "b.pt", "--part=loss"}).find("model, optimizer, ema"),
            std::string::npos);
  EXPECT_NE(refusal({"export", "a", "b.safetensors", "--part=optimizer"}).find("--format=pt"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
