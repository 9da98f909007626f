#include <algorithm>
#include <numeric>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/ranks/fixture.h"
#include "tests/ranks/formula.h"

namespace lockstep::testing {
namespace {

// Several collectives, and several groups, at once.
class InFlight : public Conformance {};

TEST_F(InFlight, OfOneKindCompleteInAnyOrderOfWaiting) {
  constexpr int kInFlight = 20;
  Tensors tensors;
  std::vector<Work> works;
  for (int i = 0; i < kInFlight; ++i) {
    tensors.push_back(formula(rank_, 1009, at::kFloat, i));
    works.push_back(group_.all_reduce(tensors.back(), {.async_op = true}));
  }
  for (int i = kInFlight - 1; i >= 0; --i) {
    works[i].wait();
    EXPECT_TRUE(works[i].is_completed());
    EXPECT_TRUE(
        matches(tensors[i], reduced_formula(world_size_, 1009, at::kFloat, ReduceOp::kSum, i)));
  }
}

TEST_F(InFlight, OfAllKindsAndSizesDoNotMixUp) {
  const int root = world_size_ / 2;
  for (const std::int64_t numel : {5, 10'007, 300'007}) {
    at::Tensor summed = formula(rank_, numel, at::kFloat);
    at::Tensor shared = formula(rank_, numel, at::kInt);
    at::Tensor highest = formula(rank_, numel, at::kHalf);
    const Tensors gathered = outputs(numel, at::kByte);
    at::Tensor part = zeros(numel, at::kDouble);
    at::Tensor swapped = zeros(numel * world_size_, at::kLong);
    const CollectiveOptions async{.async_op = true};
    std::vector<Work> works{
        group_.all_reduce(summed, {.async_op = true}),
        group_.broadcast(shared, root, async),
        group_.barrier(async),
        group_.all_gather(gathered, formula(rank_, numel, at::kByte), async),
        group_.all_reduce(highest, {.op = ReduceOp::kMax, .async_op = true}),
        group_.reduce_scatter_tensor(part, formula(rank_, numel * world_size_, at::kDouble),
                                     {.async_op = true}),
        group_.all_to_all_single(swapped, formula(rank_, numel * world_size_, at::kLong), {}, {},
                                 async),
    };
    std::rotate(works.begin(), works.begin() + (rank_ * 2) % works.size(), works.end());
    for (const Work& work : works) work.wait();
    EXPECT_TRUE(matches(summed, reduced_formula(world_size_, numel, at::kFloat, ReduceOp::kSum)));
    EXPECT_TRUE(matches(shared, formula(root, numel, at::kInt)));
    EXPECT_TRUE(matches(highest, reduced_formula(world_size_, numel, at::kHalf, ReduceOp::kMax)));
    EXPECT_TRUE(matches(
        part, reduced_formula(world_size_, numel, at::kDouble, ReduceOp::kSum, rank_ * numel)));
    for (int rank = 0; rank < world_size_; ++rank) {
      EXPECT_TRUE(matches(gathered[rank], formula(rank, numel, at::kByte)));
      EXPECT_TRUE(matches(swapped.narrow(0, rank * numel, numel),
                          formula(rank, numel, at::kLong, rank_ * numel)));
    }
  }
}

TEST_F(InFlight, MessagesOfOtherTagsWaitForTheirReceiver) {
  NEEDS_RANKS(2);
  const int next = (rank_ + 1) % world_size_;
  const int previous = (rank_ + world_size_ - 1) % world_size_;
  std::vector<Work> sending;
  for (int tag = 0; tag < 3; ++tag) {
    sending.push_back(
        group_.send(formula(rank_, 100 + tag, at::kFloat), next, tag, {.async_op = true}));
  }
  for (int tag = 2; tag >= 0; --tag) {
    at::Tensor received = zeros(100 + tag, at::kFloat);
    group_.recv(received, previous, tag);
    EXPECT_TRUE(matches(received, formula(previous, 100 + tag, at::kFloat)));
  }
  for (const Work& work : sending) work.wait();
}

TEST_F(InFlight, MessagesOfOneTagArriveInTheOrderInWhichTheyWereSent) {
  NEEDS_RANKS(2);
  constexpr int kMessages = 5;
  const int next = (rank_ + 1) % world_size_;
  const int previous = (rank_ + world_size_ - 1) % world_size_;
  for (const bool in_reverse : {false, true}) {
    Tensors received;
    std::vector<Work> works;
    for (int i = 0; i < kMessages; ++i) {
      works.push_back(
          group_.send(formula(rank_, 1009, at::kFloat, i), next, 0, {.async_op = true}));
      received.push_back(zeros(1009, at::kFloat));
      works.push_back(group_.recv(received.back(), previous, 0, {.async_op = true}));
    }
    if (in_reverse) std::reverse(works.begin(), works.end());
    for (const Work& work : works) {
      work.wait();
      EXPECT_TRUE(work.is_completed());
    }
    for (int i = 0; i < kMessages; ++i) {
      EXPECT_TRUE(matches(received[i], formula(previous, 1009, at::kFloat, i))) << i;
    }
  }
}

TEST_F(InFlight, AMessageMayWaitForACollectiveThatThePeerWaitsFor) {
  const int peer = rank_ ^ 1;
  at::Tensor sum = formula(rank_, 70'001, at::kFloat);
  const Work summing = group_.all_reduce(sum, {.async_op = true});
  if (peer < world_size_ && rank_ % 2 == 0) {
    at::Tensor received = zeros(5, at::kFloat);
    group_.recv(received, peer);
    EXPECT_TRUE(matches(received, formula(peer, 5, at::kFloat)));
  }
  summing.wait();
  EXPECT_TRUE(matches(sum, reduced_formula(world_size_, 70'001, at::kFloat, ReduceOp::kSum)));
  if (peer < world_size_ && rank_ % 2 == 1) group_.send(formula(rank_, 5, at::kFloat), peer);
}

TEST_F(InFlight, OverlappingGroupsKeepApart) {
  // Neighbours (rank, rank + 1), and all ranks in reverse: each rank is in up to four groups.
  std::vector<ProcessGroup> pairs;
  for (int rank = 0; rank + 1 < world_size_; ++rank) {
    pairs.push_back(group_.new_group({rank, rank + 1}));
  }
  std::vector<int> order(world_size_);
  std::iota(order.rbegin(), order.rend(), 0);
  const ProcessGroup backwards = group_.new_group(order);
  Tensors sums;
  std::vector<Work> works;
  for (const ProcessGroup& pair : pairs) {
    sums.push_back(formula(rank_, 70'001, at::kFloat));
    if (pair) works.push_back(pair.all_reduce(sums.back(), {.async_op = true}));
  }
  const Tensors all = outputs(1009, at::kInt);
  works.push_back(backwards.all_gather(all, formula(rank_, 1009, at::kInt), {.async_op = true}));
  at::Tensor sum = formula(rank_, 1009, at::kFloat);
  group_.all_reduce(sum);
  for (const Work& work : works) work.wait();
  EXPECT_TRUE(matches(sum, reduced_formula(world_size_, 1009, at::kFloat, ReduceOp::kSum)));
  for (int rank = 0; rank < world_size_; ++rank) {
    EXPECT_TRUE(matches(all[rank], formula(world_size_ - 1 - rank, 1009, at::kInt)));
  }
  for (int rank = 0; rank + 1 < world_size_; ++rank) {
    if (!pairs[rank]) continue;
    EXPECT_TRUE(matches(sums[rank],
                        formula(rank, 70'001, at::kFloat) + formula(rank + 1, 70'001, at::kFloat)));
  }
}

}  // namespace
}  // namespace lockstep::testing
