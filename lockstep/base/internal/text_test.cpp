#include "lockstep/base/internal/text.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(NearestName, IsABeginningOrFewKeystrokesAway) {
  const std::vector<std::string> names = {"max-restarts", "master-addr", "run", "env"};
  EXPECT_EQ(nearest_name("max", names), "max-restarts");
  EXPECT_EQ(nearest_name("max-restart", names), "max-restarts");
  EXPECT_EQ(nearest_name("master-adr", names), "master-addr");
  EXPECT_EQ(nearest_name("rum", names), "run");
  EXPECT_EQ(nearest_name("rnu", names), "run");
  EXPECT_EQ(nearest_name("nru", names), std::nullopt);
  EXPECT_EQ(nearest_name("evn", names), "env");
  EXPECT_EQ(nearest_name("", names), std::nullopt);
  EXPECT_EQ(nearest_name("something-else", names), std::nullopt);
}

}  // namespace
}  // namespace lockstep
