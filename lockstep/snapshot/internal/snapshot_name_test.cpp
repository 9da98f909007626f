#include <algorithm>

#include <gtest/gtest.h>

#include "lockstep/snapshot/internal/snapshot_list.h"

namespace lockstep {
namespace {

TEST(SnapshotName, IsReadBackAsWritten) {
  for (const SnapshotName name : {SnapshotName{0, 0}, SnapshotName{3, 420},
                                  SnapshotName{12345, 9876543210}, SnapshotName{3, 420, true}}) {
    EXPECT_EQ(SnapshotName::parse(name.file_name()), name) << name.file_name();
  }
  EXPECT_EQ((SnapshotName{3, 420}.file_name()), "snapshot-e0003-s00000420.pt");
  EXPECT_EQ((SnapshotName{3, 420, true}.file_name()), "snapshot-e0003-s00000420");
}

TEST(SnapshotName, NoOtherNameIsOne) {
  for (const char* other :
       {"", "snapshot", "snapshot-e3-s420.pt", "snapshot-e0003-s00000420.pt.tmp",
        "snapshot-e3-s420", "snapshot-e0003-s00000420/", "snapshot-e-003-s00000420.pt",
        "snapshot-e0003-s-0000420.pt", "snapshot-e99999999999999999999-s00000420.pt",
        ".lockstep-0123456789abcdef.tmp"}) {
    EXPECT_EQ(SnapshotName::parse(other), std::nullopt) << other;
  }
}

TEST(SnapshotName, LaterInTheRunIsGreater) {
  EXPECT_LT((SnapshotName{1, 900}), (SnapshotName{2, 100}));
  EXPECT_LT((SnapshotName{2, 100}), (SnapshotName{2, 101}));
}

class SnapshotsToDelete : public ::testing::Test {
 protected:
  std::vector<SnapshotName> with(int keep_last, std::vector<std::int64_t> present,
                                 std::int64_t written, std::vector<std::int64_t> damaged = {}) {
    std::vector<SnapshotName> names;
    for (const std::int64_t step : present) names.push_back({0, step});
    return snapshots_to_delete(names, {0, written}, keep_last, [&](const SnapshotName& name) {
      ++asked_;
      return std::find(damaged.begin(), damaged.end(), name.step) == damaged.end();
    });
  }
  int asked_ = 0;
};

TEST_F(SnapshotsToDelete, AreThoseBeyondTheNewest) {
  EXPECT_EQ(with(2, {1, 2, 3}, 3), (std::vector<SnapshotName>{{0, 1}}));
  EXPECT_EQ(with(3, {2, 3, 1}, 3), (std::vector<SnapshotName>{}));
  EXPECT_EQ(with(2, {5}, 5), (std::vector<SnapshotName>{}));
}

TEST_F(SnapshotsToDelete, DoNotCountDamagedOnesAsKept) {
  EXPECT_EQ(with(2, {1, 2, 3, 4}, 4, {3}), (std::vector<SnapshotName>{{0, 1}}));
  EXPECT_EQ(with(2, {1, 2}, 2, {1}), (std::vector<SnapshotName>{}));
}

TEST_F(SnapshotsToDelete, AreNeverLaterThanTheOneWritten) {
  EXPECT_EQ(with(2, {1, 2, 3, 9}, 3), (std::vector<SnapshotName>{{0, 1}}));
}

TEST_F(SnapshotsToDelete, AreFoundWithoutReadingMoreThanTheKeptOnes) {
  with(2, {1, 2, 3, 4, 5, 6}, 6);
  EXPECT_EQ(asked_, 1);
}

}  // namespace
}  // namespace lockstep
