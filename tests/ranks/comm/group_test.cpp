#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/os/files/temporary_directory.h"
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

TEST(Group, OutlivesTheThreadThatMadeIt) {
  const ProcessGroup world = default_process_group();
  std::vector<int> all(world.world_size());
  std::iota(all.begin(), all.end(), 0);
  ProcessGroup group;
  std::thread([&] { group = world.new_group(all); }).join();
  world.barrier();  // All threads have ended.
  for (int i = 0; i < 3; ++i) {
    at::Tensor sum = at::ones({100'000});
    group.all_reduce(sum);
    EXPECT_TRUE(at::equal(sum, at::full({100'000}, static_cast<double>(world.world_size()))));
  }
  std::thread([group = std::move(group)] {}).join();
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
    const int next = (world.rank() + 1) % world.world_size();
    EXPECT_SAYS(message_of<UsageError>([&] { world.send(at::zeros({1}), next, -1); }), "tag=-1");
    Tensors of_two_dtypes(world.world_size(), at::zeros({1}));
    of_two_dtypes.back() = at::zeros({1}, at::kDouble);
    EXPECT_SAYS(message_of<UsageError>([&] {
                  world.all_to_all(of_two_dtypes, Tensors(world.world_size(), at::zeros({1})));
                }),
                "dtype");
  }
  EXPECT_SAYS(message_of<UsageError>([&] { world.monitored_barrier(milliseconds(0)); }), "0 ms");
  at::Tensor still_works = at::ones({1});
  world.all_reduce(still_works);
  EXPECT_EQ(still_works.item<int>(), world.world_size());
}

TEST(Group, ARankThatDoesNotComeIsATimeoutThatNamesTheCollective) {
  const ProcessGroup world = default_process_group();
  NEEDS_RANKS(2);
  const ProcessGroup group = world.new_group(
      [&] {
        std::vector<int> all(world.world_size());
        std::iota(all.begin(), all.end(), 0);
        return all;
      }(),
      {.timeout = milliseconds(300)});
  if (world.rank() != 0) {
    const auto late = [&] { group.all_reduce(at::zeros({1 << 20})); };
    // With more than two ranks the first to give up is the others' lost peer.
    if (world.world_size() == 2) {
      const auto error = error_of<TimeoutError>(late);
      const ErrorFields& fields = error.fields();
      EXPECT_EQ(fields.operation, "all_reduce");
      EXPECT_EQ(fields.sequence, 0U);
      EXPECT_EQ(fields.group, group.name());
      EXPECT_EQ(fields.own_rank, 1);
      EXPECT_EQ(fields.timeout, milliseconds(300));
      EXPECT_EQ(fields.ranks, std::vector<int>{0});
      if (world.backend_name() == "gloo") {
        EXPECT_SAYS(std::string(error.what()),
                    "not complete within 300 ms; a rank is stuck, stopped or did not make this "
                    "call: no report from rank 0 (");
      }
    } else {
      EXPECT_THROW(late(), OperationError);
    }
  }
  world.barrier();
}

TEST(Group, ADeadlineOfOneCallBeatsTheGroups) {
  const ProcessGroup world = default_process_group();
  if (world.world_size() != 2) GTEST_SKIP() << "shown with two ranks";
  const ProcessGroup pair = world.new_group({0, 1});
  if (world.rank() == 0) {
    const auto late = [&] { pair.all_reduce(at::zeros({4}), {.timeout = milliseconds(200)}); };
    EXPECT_EQ(error_of<TimeoutError>(late).fields().timeout, milliseconds(200));
  }
  world.barrier();
}

TEST(Group, DestroyingAGroupWaitsForNoPeer) {
  const ProcessGroup world = default_process_group();
  if (world.world_size() != 2) GTEST_SKIP() << "shown with two ranks";
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
  NEEDS_RANKS(2);
  std::vector<int> all(world.world_size());
  std::iota(all.begin(), all.end(), 0);
  const ProcessGroup group = world.new_group(all);
  const int absent = world.world_size() - 1;
  if (world.rank() != absent) {
    const auto error = error_of<TimeoutError>([&] { group.monitored_barrier(milliseconds(300)); });
    EXPECT_EQ(error.rank(), absent);
    EXPECT_EQ(error.fields().operation, "monitored_barrier");
    EXPECT_EQ(error.fields().timeout, milliseconds(300));
    EXPECT_SAYS(std::string(error.what()), concat("rank ", absent, " did not join within 300 ms"));
  }
  world.barrier();
}

// The last rank comes to the barrier only when the others have seen that theirs is not over. Ranks
// tell each other by files: a message might be what makes a barrier hold.
TEST(Group, BarrierHoldsBackTheFirst) {
  NEEDS_RANKS(2);
  const ProcessGroup world = default_process_group();
  const int last = world.world_size() - 1;
  std::vector<int> all(world.world_size());
  std::iota(all.begin(), all.end(), 0);
  // Compared calls would wait for the peers before the barrier is under way.
  const ProcessGroup group = world.new_group(all, {.check_calls = false});
  const TemporaryDirectory folder(temporary_folder(), "lockstep_barrier");
  const std::filesystem::path shared = broadcast_text(world, folder.path().string(), 0);
  const auto tell = [&](int round, int rank) {
    std::ofstream(shared / concat(round, ".", rank)).close();
  };
  const auto has_told = [&](int round, int rank) {
    return std::filesystem::exists(shared / concat(round, ".", rank));
  };
  for (int round = 0; round < 10; ++round) {
    if (world.rank() == last) {
      const Deadline deadline = Deadline::after(std::chrono::seconds(60));
      for (int rank = 0; rank < last; ++rank) {
        while (!has_told(round, rank) && !deadline.passed()) std::this_thread::yield();
      }
      tell(round, last);
      group.barrier();
    } else {
      const Work barrier = group.barrier({.async_op = true});
      EXPECT_FALSE(barrier.is_completed());
      EXPECT_FALSE(has_told(round, last));
      tell(round, world.rank());
      barrier.wait();
      EXPECT_TRUE(has_told(round, last)) << "round " << round;
    }
  }
  world.monitored_barrier();  // Rank 0 deletes the folder.
}

}  // namespace
}  // namespace lockstep::testing
