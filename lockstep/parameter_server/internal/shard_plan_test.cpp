#include "lockstep/parameter_server/internal/shard_plan.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::parameter_server {
namespace {

using Part = Role::Kind;

TEST(ShardPlan, SlicesCoverAllElementsInOrder) {
  for (const std::int64_t elements : {0, 1, 2, 7, 1009}) {
    for (const int servers : {1, 2, 3, 4}) {
      std::int64_t end = 0;
      for (int server = 0; server < servers; ++server) {
        const Slice slice = slice_of(elements, server, servers);
        EXPECT_EQ(slice.begin, end);
        EXPECT_GE(slice.size(), elements / servers);
        EXPECT_LE(slice.size(), elements / servers + 1);
        end = slice.end;
      }
      EXPECT_EQ(end, elements);
    }
  }
  EXPECT_THROW(slice_of(3, 2, 2), UsageError);
}

TEST(ShardPlan, RowsAreDealtOutInTurn) {
  for (const std::int64_t rows : {1, 2, 7, 1009}) {
    for (const int servers : {1, 2, 3, 4}) {
      std::vector<std::int64_t> counts(static_cast<std::size_t>(servers));
      for (std::int64_t row = 0; row < rows; ++row)
        ++counts[static_cast<std::size_t>(row % servers)];
      for (int server = 0; server < servers; ++server)
        EXPECT_EQ(rows_of(rows, server, servers), counts[static_cast<std::size_t>(server)]);
    }
  }
}

TEST(ShardPlan, TheFirstRanksAreServers) {
  const std::vector<Role> expected{
      {Part::kServer, 0}, {Part::kServer, 1}, {Part::kTrainer, 0}, {Part::kTrainer, 1}};
  EXPECT_EQ(assign_roles({kIsNew, kIsNew, kIsNew, kIsNew}, 2), expected);
}

TEST(ShardPlan, ServersStayAndNewProcessesTakeTheLostPlaces) {
  // Server 0 is lost; its place goes to the process that is new, wherever that is.
  const std::vector<Role> new_server{
      {Part::kTrainer, 0}, {Part::kServer, 1}, {Part::kServer, 0}, {Part::kTrainer, 1}};
  EXPECT_EQ(assign_roles({kWasTrainer, 1, kIsNew, kWasTrainer}, 2), new_server);
  // With nobody new, a trainer takes it.
  const std::vector<Role> from_trainers{
      {Part::kServer, 0}, {Part::kServer, 1}, {Part::kTrainer, 0}};
  EXPECT_EQ(assign_roles({kWasTrainer, 1, kWasTrainer}, 2), from_trainers);
  // A lost trainer's place needs nothing of anybody.
  const std::vector<Role> new_trainer{{Part::kServer, 0}, {Part::kTrainer, 0}, {Part::kServer, 1}};
  EXPECT_EQ(assign_roles({0, kIsNew, 1}, 2), new_trainer);
}

TEST(ShardPlan, TooFewRanksAreSaid) {
  EXPECT_THROW(assign_roles({kIsNew, kIsNew}, 2), UsageError);
  EXPECT_THROW(assign_roles({}, 1), UsageError);
  EXPECT_THROW(assign_roles({kIsNew}, 0), UsageError);
}

}  // namespace
}  // namespace lockstep::parameter_server
