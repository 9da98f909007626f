#include "lockstep/fully_shard/internal/gather_order.h"

#include <gtest/gtest.h>

namespace lockstep::inline internal {
namespace {

using Next = std::vector<std::optional<std::size_t>>;

Next pass(GatherOrder& order, const std::vector<std::size_t>& units) {
  order.begin_pass();
  Next next;
  for (const std::size_t unit : units) next.push_back(order.next_after(unit));
  return next;
}

constexpr auto kNone = std::nullopt;

TEST(GatherOrderTest, ExpectsThePassBefore) {
  GatherOrder order;
  EXPECT_EQ(pass(order, {0, 1, 2}), (Next{kNone, kNone, kNone}));
  EXPECT_EQ(pass(order, {0, 1, 2}), (Next{1, 2, kNone}));
  // A unit may be gathered more than once.
  EXPECT_EQ(pass(order, {0, 1, 0, 2}), (Next{1, 2, kNone, kNone}));
  EXPECT_EQ(pass(order, {0, 1, 0, 2}), (Next{1, 0, 2, kNone}));
}

TEST(GatherOrderTest, ExpectsNothingOnceAPassDiffers) {
  GatherOrder order;
  pass(order, {0, 1, 2, 3});
  EXPECT_EQ(pass(order, {0, 2, 1, 3, 4}), (Next{1, kNone, kNone, kNone, kNone}));
  EXPECT_EQ(pass(order, {0, 2}), (Next{2, 1}));
  EXPECT_EQ(pass(order, {}), Next{});
  EXPECT_EQ(pass(order, {0}), (Next{kNone}));
}

}  // namespace
}  // namespace lockstep::inline internal
