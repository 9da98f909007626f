#include "lockstep/comm/internal/call_signature.h"

#include <vector>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Calls = std::vector<CallSignature>;

TEST(CallSignature, EqualCallsDoNotDiffer) {
  const auto call = CallSignature("all_reduce").of(at::zeros({4})).with(ReduceOp::kSum);
  EXPECT_EQ(find_difference(Calls{call, call, call}), std::nullopt);
  EXPECT_EQ(find_difference(Calls{call}), std::nullopt);
}

TEST(CallSignature, NamesTheFirstRankThatDiffersAndBothCalls) {
  const auto sum = CallSignature("all_reduce").of(at::zeros({4})).with(ReduceOp::kSum);
  const auto other = CallSignature("broadcast").of(at::zeros({5}, at::kLong)).at_root(2);
  EXPECT_EQ(
      find_difference(Calls{sum, sum, other, other}),
      "rank 2 called broadcast of 5 int64, root 2, but rank 0 all_reduce of 4 float32, op SUM");
}

TEST(CallSignature, EveryFieldCounts) {
  const auto call = [] {
    return CallSignature("reduce").of(at::zeros({4})).with(ReduceOp::kSum).at_root(0);
  };
  for (const CallSignature& other :
       {CallSignature("all_reduce").of(at::zeros({4})).with(ReduceOp::kSum).at_root(0),
        call().of(at::zeros({5})), call().of(at::kInt), call().with(ReduceOp::kMax),
        call().at_root(1)}) {
    EXPECT_NE(find_difference(Calls{call(), other}), std::nullopt) << describe(other);
  }
}

TEST(CallSignature, SaysNoMoreThanTheCallHas) {
  EXPECT_EQ(describe(CallSignature("barrier")), "barrier");
  EXPECT_EQ(describe(CallSignature("all_to_all").of(at::kHalf)), "all_to_all of float16");
  EXPECT_EQ(describe(CallSignature("all_gather_into_tensor").of(at::zeros({0}))),
            "all_gather_into_tensor of 0 float32");
}

TEST(PairCounts, WhatIsSentMustBeWhatIsExpected) {
  const std::vector<std::int64_t> zero_sends{1, 2}, zero_gets{1, 3};
  const std::vector<std::int64_t> one_sends{3, 4}, one_gets{2, 4};
  EXPECT_EQ(
      find_difference(std::vector<PairCounts>{{zero_sends, zero_gets}, {one_sends, one_gets}}),
      std::nullopt);
  EXPECT_EQ(
      find_difference(std::vector<PairCounts>{{zero_sends, zero_gets}, {zero_sends, one_gets}}),
      "rank 1 sends 1 elements to rank 0, which expects 3");
}

}  // namespace
}  // namespace lockstep
