#include "lockstep/comm/backends/gloo/ordered_keys.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace lockstep::gloo_backend {
namespace {

using Op = c10d::ReduceOp;
using Tensors = std::vector<at::Tensor>;

constexpr at::ScalarType kFloats[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

struct CompleteWork : c10d::Work {
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

at::Tensor numbers(at::ScalarType dtype) {
  return at::tensor({-INFINITY, -65'504.0, -1.5, -1.0, -0x1p-14, -0.0, 0.0, 0x1p-14, 1.0, 1.5,
                     65'504.0, INFINITY},
                    at::kDouble)
      .to(dtype);
}

TEST(OrderedKeys, AreOrderedAsTheNumbers) {
  for (const at::ScalarType dtype : kFloats) {
    const at::Tensor keys = ordered_keys(numbers(dtype), Op::MIN);
    EXPECT_TRUE(keys.diff().gt(0).all().item<bool>()) << dtype << keys;
  }
}

TEST(OrderedKeys, OfNanComeFirstForMinAndLastForMax) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const at::ScalarType dtype : kFloats) {
    const at::Tensor values =
        at::tensor({double{NAN}, -double{NAN}, -inf, inf}, at::kDouble).to(dtype);
    const at::Tensor first = ordered_keys(values, Op::MIN);
    EXPECT_TRUE(first.narrow(0, 0, 2).eq(first.min()).all().item<bool>()) << dtype;
    EXPECT_TRUE(first.narrow(0, 2, 2).gt(first.min()).all().item<bool>()) << dtype;
    const at::Tensor last = ordered_keys(values, Op::MAX);
    EXPECT_TRUE(last.narrow(0, 0, 2).eq(last.max()).all().item<bool>()) << dtype;
    EXPECT_TRUE(last.narrow(0, 2, 2).lt(last.max()).all().item<bool>()) << dtype;
  }
}

TEST(OrderedKeys, BecomeTheNumbersAgainInEachDtypeOfTheOutputs) {
  Tensors values;
  Tensors outputs;
  Tensors keys;
  for (const at::ScalarType dtype : kFloats) {
    values.push_back(
        at::cat({numbers(dtype), at::tensor({double{NAN}}, at::kDouble).to(dtype)}).view({1, 13}));
    outputs.push_back(at::zeros_like(values.back()));
    keys.push_back(ordered_keys(values.back(), Op::MAX));
  }
  const auto work = keyed_work(c10::make_intrusive<CompleteWork>(), keys, outputs);
  EXPECT_TRUE(work->wait(kNoTimeout));
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(at::allclose(outputs[i], values[i], 0, 0, /*equal_nan=*/true)) << outputs[i];
    EXPECT_TRUE(
        at::equal(outputs[i].signbit().narrow(1, 0, 12), values[i].signbit().narrow(1, 0, 12)));
  }
}

TEST(OrderedKeys, AreForMinAndMaxOfFloatsOfOneDtype) {
  const at::Tensor floats = at::ones({2});
  const at::Tensor halves = at::ones({2}, at::kHalf);
  for (const auto op : {Op::MIN, Op::MAX}) {
    EXPECT_TRUE(needs_keys({floats, floats}, op));
    EXPECT_TRUE(needs_keys({halves}, op));
    EXPECT_FALSE(needs_keys({floats, halves}, op)) << "left to Gloo, which refuses them";
    EXPECT_FALSE(needs_keys({floats, floats.to(at::kInt)}, op));
    EXPECT_FALSE(needs_keys({floats.to(at::kInt)}, op));
    EXPECT_FALSE(needs_keys({}, op));
  }
  EXPECT_FALSE(needs_keys({floats}, Op::SUM));
}

}  // namespace
}  // namespace lockstep::gloo_backend
