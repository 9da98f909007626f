#include "lockstep/comm/backends/shm/call.h"

#include <set>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace lockstep::shm {
namespace {

TEST(Call, IsDescribedByWhatRanksMustAgreeOn) {
  EXPECT_EQ(describe({.kind = CallKind::kAllReduce,
                      .element = Element::kFloat32,
                      .op = ReduceOp::kAvg,
                      .elements = 12}),
            "all_reduce (AVG) of 12 float32 elements");
  EXPECT_EQ(describe({.kind = CallKind::kAllReduce,
                      .element = Element::kInt8,
                      .op = ReduceOp::kBxor,
                      .in_shared_memory = true,
                      .elements = 1}),
            "all_reduce (BXOR) of 1 int8 elements in shared memory");
  EXPECT_EQ(
      describe(
          {.kind = CallKind::kBroadcast, .element = Element::kInt64, .root = 3, .elements = 7}),
      "broadcast of 7 int64 elements with root 3");
  EXPECT_EQ(describe({.kind = CallKind::kAllToAll, .element = Element::kFloat64}),
            "all_to_all float64 elements");
  EXPECT_EQ(describe({.kind = CallKind::kAllReduce,
                      .element = Element::kFloat32,
                      .in_shared_memory = true,
                      .converts = true,
                      .input_element = Element::kBFloat16,
                      .elements = 3}),
            "all_reduce (SUM) of 3 float32 elements from bfloat16 in shared memory");
  EXPECT_EQ(describe({.kind = CallKind::kBarrier}), "barrier");
  Call named{.kind = CallKind::kBarrier};
  named.set_name("epoch");
  EXPECT_EQ(describe(named, call_name("epoch")), "barrier named 'epoch'");
}

TEST(Call, TellsTensOfThousandsOfNamesApart) {
  std::set<std::pair<int, int>> labels;
  for (int i = 0; i < 50'000; ++i) {
    Call call;
    call.set_name(std::to_string(i));
    labels.emplace(int{call.label_high}, static_cast<int>(call.label_low));
  }
  EXPECT_EQ(labels.size(), 50'000);
}

TEST(Call, DiffersInEveryPart) {
  const Call call{.kind = CallKind::kReduce, .root = 0, .elements = 5};
  const auto differs = [&](auto change) {
    Call other = call;
    change(other);
    return other != call && describe(other) != describe(call);
  };
  EXPECT_TRUE(differs([](Call& other) { other.kind = CallKind::kAllReduce; }));
  EXPECT_TRUE(differs([](Call& other) { other.element = Element::kFloat16; }));
  EXPECT_TRUE(differs([](Call& other) { other.op = ReduceOp::kMax; }));
  EXPECT_TRUE(differs([](Call& other) { other.in_shared_memory = true; }));
  EXPECT_TRUE(differs([](Call& other) {
    other.converts = true;
    other.input_element = Element::kFloat16;
  }));
  EXPECT_TRUE(differs([](Call& other) { other.root = 1; }));
  EXPECT_TRUE(differs([](Call& other) { other.set_name("loss"); }));
  EXPECT_TRUE(differs([](Call& other) { other.elements = 6; }));
}

}  // namespace
}  // namespace lockstep::shm
