#include "lockstep/recovery/internal/standing.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Kind = SourceChoice::Kind;

TEST(Standing, OfTwoSidesOfACutNetworkTheLaterCounts) {
  EXPECT_LT((Standing{1, 8}), (Standing{2, 8}));
  EXPECT_LT((Standing{2, 8}), (Standing{2, 9}));
  EXPECT_LT(Standing{}, (Standing{0, 0}));
  EXPECT_FALSE(Standing{}.exists());
}

void expect_choice(const std::vector<Sources>& ranks, Kind kind, int rank,
                   const Standing& standing = {}) {
  const SourceChoice choice = choose_source(ranks);
  EXPECT_EQ(choice.kind, kind);
  EXPECT_EQ(choice.rank, rank);
  EXPECT_EQ(choice.standing, standing);
}

TEST(ChooseSource, TakesTheFirstOfThoseThatAreFurthest) {
  const Sources none;
  const Sources behind{.state = {1, 7}};
  const Sources ahead{.state = {1, 8}, .known_steps = 8};
  expect_choice({ahead, ahead}, Kind::kOwn, 0, {1, 8});
  expect_choice({none, behind, ahead, ahead}, Kind::kRank, 2, {1, 8});
  expect_choice({{.state = {1, 8}}, {.state = {2, 8}}}, Kind::kRank, 1, {2, 8});
  expect_choice({{.memory = {1, 20}, .snapshot_steps = 30}, ahead}, Kind::kRank, 1, {1, 8});
}

TEST(ChooseSource, GoesByWhatWasKeptWhereNobodyHasAState) {
  const Sources copy{.memory = {3, 20}, .snapshot_steps = 10};
  const Sources older{.memory = {3, 10}, .snapshot_steps = 10};
  expect_choice({older, copy}, Kind::kMemory, 1, {3, 20});
  Sources later = copy;
  later.snapshot_steps = 21;
  expect_choice({later, copy}, Kind::kSnapshot, 0, {3, 20});
  expect_choice({{.snapshot_steps = 0}, {}}, Kind::kSnapshot, 0);
  expect_choice({{}, {.snapshot_steps = 5}}, Kind::kBegin, 0);
  expect_choice({{}, {}}, Kind::kBegin, 0);
}

TEST(ChooseSource, NeverBeginsAgainWhereStepsHaveBeenMade) {
  expect_choice({{}, {.known_steps = 0}}, Kind::kLost, 0, {-1, 0});
  expect_choice({{.known_steps = 40}, {.known_steps = 41}}, Kind::kLost, 0, {-1, 41});
  const Sources copy{.memory = {3, 20}, .known_steps = 41};
  expect_choice({copy, copy}, Kind::kMemory, 0, {3, 20});
  expect_choice({{.snapshot_steps = 5, .known_steps = 41}, {}}, Kind::kSnapshot, 0);
}

}  // namespace
}  // namespace lockstep
