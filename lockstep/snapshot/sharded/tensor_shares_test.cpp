#include <algorithm>

#include <gtest/gtest.h>

#include "lockstep/snapshot/sharded/share_tree.h"

namespace lockstep {
namespace {

std::vector<std::uint64_t> loads_of(const std::vector<std::uint64_t>& tensor_bytes,
                                    std::vector<std::uint64_t> kept_bytes) {
  const std::vector<int> owners = plan_shares(tensor_bytes, kept_bytes);
  EXPECT_EQ(owners.size(), tensor_bytes.size());
  for (std::size_t i = 0; i < owners.size(); ++i) {
    kept_bytes.at(static_cast<std::size_t>(owners[i])) += tensor_bytes[i];
  }
  return kept_bytes;
}

TEST(PlanShares, SpreadsTensorsByTheirBytes) {
  EXPECT_EQ(plan_shares({8, 8, 8, 8}, {0, 0, 0, 0}), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(plan_shares({1, 2, 3, 100}, {0, 0}), (std::vector<int>{1, 1, 1, 0}));
  EXPECT_EQ(plan_shares({5, 5}, {0}), (std::vector<int>{0, 0}));
  EXPECT_EQ(plan_shares({}, {0, 0}), (std::vector<int>{}));
  EXPECT_EQ(plan_shares({0, 0, 0}, {0, 0}), (std::vector<int>{0, 0, 0}));
}

TEST(PlanShares, ARankThatWritesMoreInAnyCaseGetsLess) {
  EXPECT_EQ(plan_shares({4, 4, 4}, {100, 0, 0}), (std::vector<int>{1, 2, 1}));
}

TEST(PlanShares, NoRankHasMoreThanAnEvenShareAndTheLargestTensor) {
  for (std::size_t ranks = 1; ranks <= 7; ++ranks) {
    for (std::size_t tensors = 0; tensors < 60; ++tensors) {
      std::vector<std::uint64_t> bytes;
      std::uint64_t total = 0;
      for (std::size_t i = 0; i < tensors; ++i) {
        bytes.push_back((i * i * 37 + tensors * 11) % 101);
        total += bytes.back();
      }
      const auto loads = loads_of(bytes, std::vector<std::uint64_t>(ranks));
      const std::uint64_t largest = bytes.empty() ? 0 : *std::ranges::max_element(bytes);
      EXPECT_LE(*std::ranges::max_element(loads), total / ranks + largest);
    }
  }
}

}  // namespace
}  // namespace lockstep
