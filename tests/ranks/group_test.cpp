#include <algorithm>
#include <numeric>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/comm/init_process_group.h"
#include "tests/ranks/fixture.h"
#include "tests/ranks/formula.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;

TEST(Group, ThereIsOneDefaultGroup) {
  EXPECT_TRUE(is_initialized());
  EXPECT_SAYS(message_of<UsageError>([] { init_process_group(); }), "destroy_process_group");
  EXPECT_EQ(default_process_group().name(), "default");
}

TEST(Group, AnEmptyGroupSaysSo) {
  const ProcessGroup empty;
  EXPECT_FALSE(empty);
  EXPECT_SAYS(message_of<UsageError>([&] { empty.barrier(); }), "barrier");
}

TEST(Group, NewGroupsRenumberTheirRanksAndLeaveOthersOut) {
  const ProcessGroup world = default_process_group();
  std::vector<int> reversed(world.world_size());
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  const ProcessGroup backwards = world.new_group(reversed);
  EXPECT_EQ(backwards.rank(), world.world_size() - 1 - world.rank());
  at::Tensor tensor = formula(world.rank(), 7, at::kFloat);
  backwards.broadcast(tensor, 0);
  EXPECT_TRUE(at::equal(tensor, formula(world.world_size() - 1, 7, at::kFloat)));

  std::vector<int> even;
  for (int rank = 0; rank < world.world_size(); rank += 2) even.push_back(rank);
  const ProcessGroup evens = world.new_group(even);
  EXPECT_EQ(static_cast<bool>(evens), world.rank() % 2 == 0);
  if (!evens) return;
  at::Tensor sum = at::ones({3});
  evens.all_reduce(sum);
  EXPECT_TRUE(at::equal(sum, at::full({3}, static_cast<double>(even.size()))));
}

TEST(Group, RefusesRanksThatAreNone) {
  const ProcessGroup world = default_process_group();
  EXPECT_SAYS(message_of<UsageError>([&] { world.new_group({}); }), "no ranks");
  EXPECT_SAYS(message_of<UsageError>([&] { world.new_group({0, 0}); }), "twice");
  EXPECT_SAYS(message_of<UsageError>([&] { world.new_group({world.world_size()}); }),
              "not a rank of this group");
}

TEST(Group, RefusesTensorsBeforeAnythingIsSent) {
  const ProcessGroup world = default_process_group();
  const auto refusal = [&](const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) {
    return message_of<UsageError>([&] { world.all_reduce(tensor, {.op = op}); });
  };
  EXPECT_SAYS(refusal({}), "undefined");
  EXPECT_SAYS(refusal(at::zeros({2, 3}).t()), "contiguous");
  EXPECT_SAYS(refusal(at::zeros({2}, at::kComplexFloat)), "ComplexFloat");
  EXPECT_SAYS(refusal(at::zeros({2}), ReduceOp::kBxor), "BXOR is not defined for Float");
  EXPECT_SAYS(refusal(at::zeros({2}, at::kLong), ReduceOp::kAvg), "AVG is not defined for Long");
  EXPECT_SAYS(message_of<UsageError>([&] { world.broadcast(at::zeros({1}), -1); }), "source=-1");
  EXPECT_SAYS(message_of<UsageError>([&] { world.all_gather({}, at::zeros({1})); }),
              "outputs holds 0 tensors");
  EXPECT_SAYS(
      message_of<UsageError>([&] { world.all_gather_into_tensor(at::zeros({7}), at::zeros({2})); }),
      "output has 7 elements");
  EXPECT_SAYS(message_of<UsageError>([&] { world.send(at::zeros({1}), world.rank()); }),
              "this rank itself");
  if (world.world_size() > 1) {  // Alone there is nothing to wait for.
    EXPECT_SAYS(message_of<UsageError>(
                    [&] { world.all_reduce(at::zeros({1}), {.timeout = milliseconds(-5)}); }),
                "timeout of -5 ms");
  }
  EXPECT_SAYS(message_of<UsageError>([&] { world.monitored_barrier(milliseconds(0)); }), "0 ms");
  at::Tensor still_works = at::ones({1});
  world.all_reduce(still_works);
  EXPECT_EQ(still_works.item<int>(), world.world_size());
}

TEST(Group, ARankThatDoesNotComeIsATimeoutThatNamesTheCollective) {
  const ProcessGroup world = default_process_group();
  if (world.world_size() == 1) return;  // Nobody to wait for.
  const ProcessGroup group = world.new_group(
      [&] {
        std::vector<int> all(world.world_size());
        std::iota(all.begin(), all.end(), 0);
        return all;
      }(),
      {.timeout = milliseconds(300)});
  if (world.rank() != 0) {
    const std::string message =
        message_of<TimeoutError>([&] { group.all_reduce(at::zeros({1 << 20})); });
    // With more than two ranks the first to give up is the others' lost peer.
    if (world.world_size() == 2) {
      EXPECT_SAYS(message, "all_reduce number 0 of group 'default/");
      EXPECT_SAYS(message, "not complete within 300 ms");
      if (world.backend_name() == "gloo") {
        EXPECT_SAYS(message, "did not make this call: nothing is heard of rank 0");
      }
    }
  }
  world.barrier();
}

TEST(Group, ADeadlineOfOneCallBeatsTheGroups) {
  const ProcessGroup world = default_process_group();
  if (world.world_size() != 2) return;  // Shown with two ranks.
  const ProcessGroup pair = world.new_group({0, 1});
  if (world.rank() == 0) {
    EXPECT_SAYS(message_of<TimeoutError>(
                    [&] { pair.all_reduce(at::zeros({4}), {.timeout = milliseconds(200)}); }),
                "200 ms");
  }
  world.barrier();
}

TEST(Group, DestroyingAGroupWaitsForNoPeer) {
  const ProcessGroup world = default_process_group();
  if (world.world_size() != 2) return;  // Shown with two ranks.
  at::Tensor tensor = at::zeros({1 << 20});
  {
    // Were the deadline waited for, the test would run into its own. Compared calls would wait for
    // the peer before anything is under way.
    const ProcessGroup pair =
        world.new_group({0, 1}, {.timeout = std::chrono::minutes(10), .check_calls = false});
    if (world.rank() == 0) pair.all_reduce(tensor, {.async_op = true});
    if (world.rank() == 1) world.barrier();
  }
  if (world.rank() == 0) world.barrier();
}

TEST(Group, MonitoredBarrierNamesWhoIsMissing) {
  const ProcessGroup world = default_process_group();
  world.monitored_barrier();
  world.monitored_barrier();
  if (world.world_size() == 1) return;  // Nobody can be missing.
  std::vector<int> all(world.world_size());
  std::iota(all.begin(), all.end(), 0);
  const ProcessGroup group = world.new_group(all);
  const int absent = world.world_size() - 1;
  if (world.rank() != absent) {
    EXPECT_SAYS(message_of<TimeoutError>([&] { group.monitored_barrier(milliseconds(300)); }),
                "rank " + std::to_string(absent) + " had not come");
  }
  world.barrier();
}

TEST(Group, BarrierHoldsBackTheFirst) {
  const ProcessGroup world = default_process_group();
  for (int i = 0; i < 10; ++i) world.barrier();
}

}  // namespace
}  // namespace lockstep::testing
