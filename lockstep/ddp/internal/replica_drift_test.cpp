#include <gtest/gtest.h>

#include "lockstep/ddp/internal/fingerprint.h"

namespace lockstep {
namespace {

const Fingerprints kReplica{{"a", 1}, {"the b", 2}, {"c", 3}};

bool says(const std::vector<Fingerprints>& ranks, const std::string& words) {
  const std::string text = describe_drift(ranks);
  EXPECT_NE(text.find(words), std::string::npos) << text;
  return text.find(words) != std::string::npos;
}

TEST(ReplicaDriftText, NamesTheRankAndTheFirstTensor) {
  const Fingerprints other{{"a", 1}, {"the b", 5}, {"c", 7}};
  EXPECT_TRUE(
      says({kReplica, other}, "rank 1 drifted from rank 0: rank 1 in 'the b' and 1 more (of 3)"));
}

TEST(ReplicaDriftText, MostRanksAreRightEvenAgainstRank0) {
  const Fingerprints other{{"a", 1}, {"the b", 2}, {"c", 4}};
  EXPECT_TRUE(
      says({other, kReplica, kReplica}, "rank 0 drifted from ranks 1, 2: rank 0 in 'c' (of 3)"));
  EXPECT_TRUE(says({kReplica, other, other, kReplica}, "ranks 1, 2 drifted from ranks 0, 3"));
}

TEST(ReplicaDriftText, NamesEachRanksOwn) {
  EXPECT_TRUE(says(
      {kReplica, {{"a", 9}, {"the b", 2}, {"c", 3}}, kReplica, {{"a", 1}, {"the b", 2}, {"c", 8}}},
      "ranks 1, 3 drifted from ranks 0, 2: rank 1 in 'a', rank 3 in 'c'"));
}

TEST(ReplicaDriftText, NamesWhatOnlyOneHas) {
  EXPECT_TRUE(says({kReplica, {{"a", 1}, {"c", 3}}}, "rank 1 in 'the b' (of 3)"));
  EXPECT_TRUE(says({{{"a", 1}}, kReplica}, "rank 1 in 'the b' and 1 more (of 1)"));
  EXPECT_TRUE(says({kReplica, {}}, "rank 1 in 'a' and 2 more"));
  EXPECT_TRUE(says({kReplica, {{"the b", 2}, {"a", 1}, {"c", 3}}}, "in the order of its tensors"));
}

TEST(ReplicaDriftText, NamesSoManyRanksOnly) {
  std::vector<Fingerprints> ranks(30, kReplica);
  for (std::size_t rank = 0; rank < 10; ++rank) ranks[rank][0].hash = rank + 2;
  EXPECT_TRUE(says(ranks, "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more drifted from ranks 10, 11,"));
  EXPECT_EQ(describe_drift(ranks).find("rank 8 in"), std::string::npos);
}

TEST(ReplicaDriftText, FingerprintsTravelAsText) {
  EXPECT_EQ(read_fingerprints(write_fingerprints(kReplica)), kReplica);
  EXPECT_EQ(read_fingerprints(write_fingerprints({})), Fingerprints{});
  EXPECT_EQ(read_fingerprints(write_fingerprints({{"", UINT64_MAX}})),
            (Fingerprints{{"", UINT64_MAX}}));
}

}  // namespace
}  // namespace lockstep
