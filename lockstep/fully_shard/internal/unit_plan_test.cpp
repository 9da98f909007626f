#include "lockstep/fully_shard/internal/unit_plan.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using UnitOwners = std::vector<std::size_t>;

TEST(UnitPlan, GivesAParameterToTheInnermostUnit) {
  const std::vector<std::string> units{"", "blocks.1", "blocks.1.mlp", "blocks.10"};
  EXPECT_EQ(plan_units(units, {{"embedding.weight"},
                               {"blocks.1.norm.weight"},
                               {"blocks.1.mlp.weight"},
                               {"blocks.10.mlp.weight"},
                               {"blocks.2.mlp.weight"}}),
            (UnitOwners{0, 1, 2, 3, 0}));
}

TEST(UnitPlan, DoesNotDependOnTheOrderOfUnits) {
  EXPECT_EQ(plan_units({"a.b", "", "a"}, {{"a.b.c"}, {"a.c"}, {"c"}}), (UnitOwners{0, 2, 1}));
}

TEST(UnitPlan, GivesASharedParameterToTheUnitThatHoldsAllItsNames) {
  const std::vector<std::string> units{"", "a", "a.x", "a.y", "b"};
  EXPECT_EQ(plan_units(units, {{"a.x.w", "a.y.w"}, {"a.x.w", "b.w"}, {"a.x.v", "a.x.w"}}),
            (UnitOwners{1, 0, 2}));
}

TEST(UnitPlan, TellsSubmodulesFromNamesThatBeginAlike) {
  EXPECT_TRUE(is_within("a.b", "a"));
  EXPECT_TRUE(is_within("a", "a"));
  EXPECT_TRUE(is_within("a", ""));
  EXPECT_FALSE(is_within("ab", "a"));
  EXPECT_FALSE(is_within("a", "a.b"));
}

}  // namespace
}  // namespace lockstep
