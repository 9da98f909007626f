#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/pipeline/pipeline.h"

namespace lockstep {
namespace {

using Cuts = std::vector<std::int64_t>;

std::vector<double> stage_costs(const std::vector<double>& costs, Cuts cuts) {
  cuts.insert(cuts.begin(), 0);
  cuts.push_back(static_cast<std::int64_t>(costs.size()));
  std::vector<double> sums;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    EXPECT_LT(cuts[i], cuts[i + 1]);
    double sum = 0;
    for (auto layer = cuts[i]; layer < cuts[i + 1]; ++layer) {
      sum += costs[static_cast<std::size_t>(layer)];
    }
    sums.push_back(sum);
  }
  return sums;
}

double dearest_of(const std::vector<double>& costs, const Cuts& cuts) {
  return std::ranges::max(stage_costs(costs, cuts));
}

/// Tries all ways to cut.
double least_dearest(const std::vector<double>& costs, int stages, Cuts cuts = {}) {
  if (static_cast<int>(cuts.size()) == stages - 1) return dearest_of(costs, cuts);
  double least = std::numeric_limits<double>::infinity();
  const auto left = stages - 1 - static_cast<std::int64_t>(cuts.size());
  for (std::int64_t cut = cuts.empty() ? 1 : cuts.back() + 1;
       cut + left <= static_cast<std::int64_t>(costs.size()); ++cut) {
    Cuts more = cuts;
    more.push_back(cut);
    least = std::min(least, least_dearest(costs, stages, more));
  }
  return least;
}

TEST(BalanceStages, NoCutHasACheaperDearestStage) {
  for (int layers = 1; layers <= 9; ++layers) {
    for (int seed = 0; seed < 12; ++seed) {
      std::vector<double> costs;
      for (int i = 0; i < layers; ++i) costs.push_back((i * i * 7 + seed * (i + 3)) % 11);
      for (int stages = 1; stages <= std::min(layers, 5); ++stages) {
        SCOPED_TRACE(concat(layers, " layers, seed ", seed, ", ", stages, " stages"));
        const Cuts cuts = balance_stages(costs, stages);
        ASSERT_EQ(cuts.size(), static_cast<std::size_t>(stages - 1));
        EXPECT_EQ(dearest_of(costs, cuts), least_dearest(costs, stages));
      }
    }
  }
}

TEST(BalanceStages, TheOthersAreAsEqualAsTheyCanBe) {
  EXPECT_EQ(balance_stages({8, 1, 1, 1, 1}, 3), (Cuts{1, 3}));
  EXPECT_EQ(balance_stages({1, 1, 1, 1}, 2), (Cuts{2}));
}

TEST(BalanceStages, WhatCostsNothingStaysWithWhatIsBeforeIt) {
  EXPECT_EQ(balance_stages({10, 0, 10, 0, 10, 0}, 3), (Cuts{2, 4}));
  EXPECT_EQ(balance_stages({0, 0, 0}, 3), (Cuts{1, 2}));
}

TEST(BalanceStages, WhatCannotBeCutIsRefused) {
  EXPECT_THROW(balance_stages({1, 2}, 3), UsageError);
  EXPECT_THROW(balance_stages({1, 2}, 0), UsageError);
  EXPECT_THROW(balance_stages({}, 1), UsageError);
  EXPECT_THROW(balance_stages({1, -1}, 1), UsageError);
  EXPECT_THROW(balance_stages({1, std::nan("")}, 1), UsageError);
  EXPECT_THROW(balance_stages({1, std::numeric_limits<double>::infinity()}, 1), UsageError);
}

}  // namespace
}  // namespace lockstep
