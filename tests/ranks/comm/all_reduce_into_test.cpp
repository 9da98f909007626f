// all_reduce_into: from one tensor into another, of another dtype too, and with the sum of squares
// of the results where the group shares memory.
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/internal/native_collectives.h"
#include "tests/ranks/fixture.h"
#include "tests/ranks/formula.h"

namespace lockstep::testing {
namespace {

class AllReduceInto : public Conformance {
 protected:
  // Where all ranks' tensors must lie alike.
  std::vector<Memory> places() const {
    if (!group_.shares_memory()) return {Memory::kOrdinary};
    return {Memory::kOrdinary, Memory::kBackend};
  }
  at::Tensor sum_over_ranks(const at::Tensor& part) const {
    at::Tensor sum = part.clone();
    group_.all_reduce(sum);
    return sum;
  }
  at::Tensor shared(const at::Tensor& values) const {
    return group_.allocate_tensor(values.numel(), values.scalar_type()).copy_(values);
  }
};

TEST_F(AllReduceInto, LeavesTheReductionInTheOutput) {
  for (const Memory memory : places()) {
    for_all_tensors([&](at::ScalarType dtype, std::int64_t numel) {
      const at::Tensor input = formula(rank_, numel, dtype);
      const at::Tensor output = place(zeros(numel, dtype), memory);
      all_reduce_into(group_, output, input, {.op = ReduceOp::kMax});
      EXPECT_TRUE(matches(output, reduced_formula(world_size_, numel, dtype, ReduceOp::kMax)));
      EXPECT_TRUE(matches(input, formula(rank_, numel, dtype)));
    });
  }
}

TEST_F(AllReduceInto, AddsTheSquaresOfEachResultOnceOverAllRanks) {
  if (!group_.shares_memory()) GTEST_SKIP() << "the group shares no memory";
  for (const Memory memory : places()) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      for (const std::int64_t numel : {0, 1, 7, 1009, 65'537, 300'007}) {
        SCOPED_TRACE(std::to_string(numel) + " × " + c10::toString(dtype));
        const at::Tensor input = at::sin(at::arange(numel, at::kFloat) * (rank_ + 1)).to(dtype);
        const at::Tensor output = place(input, memory);
        const at::Tensor squares = at::ones({1}, at::kDouble);
        all_reduce_into(group_, output, output, {.op = ReduceOp::kAvg, .sum_of_squares = squares});
        const auto expected = output.to(at::kDouble).square().sum().item<double>();
        const auto sum = sum_over_ranks(squares - 1).item<double>();
        EXPECT_NEAR(sum, expected, 1e-9 * (1 + expected));
        at::Tensor same = place(input, memory);
        all_reduce_into(group_, same, same, {.op = ReduceOp::kAvg});
        EXPECT_TRUE(at::equal(same, output));
      }
    }
  }
}

TEST_F(AllReduceInto, ReducesHalfPrecisionIntoFloat32InSharedMemory) {
  if (!group_.shares_memory()) GTEST_SKIP() << "the group shares no memory";
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    for (const std::int64_t numel : {0, 1, 17, 1009, 65'537, 2'300'003}) {
      SCOPED_TRACE(std::to_string(numel) + " × " + c10::toString(dtype));
      at::Tensor expected = at::zeros({numel});
      for (int rank = 0; rank < world_size_; ++rank) {
        expected += at::sin(at::arange(numel, at::kFloat) * (rank + 1)).to(dtype);
      }
      const at::Tensor values = at::sin(at::arange(numel, at::kFloat) * (rank_ + 1)).to(dtype);
      const at::Tensor input = shared(values);
      const at::Tensor output = shared(at::zeros({numel}));
      const at::Tensor squares = at::zeros({1}, at::kDouble);
      all_reduce_into(group_, output, input, {.sum_of_squares = squares});
      EXPECT_TRUE(at::equal(output, expected));
      EXPECT_TRUE(at::equal(input, values));
      const auto norm = expected.to(at::kDouble).norm().item<double>();
      EXPECT_NEAR(std::sqrt(sum_over_ranks(squares).item<double>()), norm, 1e-9 * norm);
      // In flight together with the next, from the same input.
      const at::Tensor other = shared(at::zeros({numel}));
      const Work first = all_reduce_into(group_, output, input, {}, {.async_op = true});
      const Work second = all_reduce_into(group_, other, input, {}, {.async_op = true});
      second.wait();
      first.wait();
      EXPECT_TRUE(at::equal(other, expected));
    }
  }
}

TEST_F(AllReduceInto, RefusesWhatItCannotDoAndStaysOfUse) {
  const auto refusal = [&](const at::Tensor& output, const at::Tensor& input,
                           const at::Tensor& squares = {}) {
    return message_of<UsageError>(
        [&] { all_reduce_into(group_, output, input, {.sum_of_squares = squares}); });
  };
  const at::Tensor floats = zeros(5, at::kFloat);
  EXPECT_SAYS(refusal(floats, zeros(4, at::kFloat)), "output has 5 elements, input has 4");
  EXPECT_SAYS(refusal(floats, zeros(5, at::kDouble)), "output has dtype Float, input has Double");
  EXPECT_SAYS(refusal(zeros(5, at::kHalf), floats), "output has dtype Half, input has Float");
  EXPECT_SAYS(refusal(floats, zeros(5, at::kHalf)), "create output and input with allocate_tensor");
  EXPECT_SAYS(refusal(floats, shared(at::zeros({5}, at::kHalf))),
              "create output and input with allocate_tensor");
  const at::Tensor sum = at::zeros({1}, at::kDouble);
  if (group_.shares_memory()) {
    EXPECT_SAYS(refusal(zeros(5, at::kInt), zeros(5, at::kInt), sum), "not defined for Int");
    EXPECT_SAYS(refusal(floats, floats, floats), "must be one float64 on the CPU, not 5 Float");
  } else {
    EXPECT_SAYS(refusal(floats, floats, sum), "sum_of_squares needs a group that shares memory");
  }
  group_.barrier();
}

TEST_F(AllReduceInto, RanksThatConvertAndRanksThatDoNotAreToldOfEachOther) {
  if (!group_.shares_memory()) GTEST_SKIP() << "the group shares no memory";
  const ProcessGroup group = group_of_all();
  const bool is_odd = rank_ == world_size_ - 1;
  const at::Tensor output = group.allocate_tensor(2000, at::kFloat).zero_();
  const at::Tensor input = group.allocate_tensor(2000, is_odd ? at::kHalf : at::kBFloat16).zero_();
  EXPECT_SAYS(message_of<UsageError>([&] { all_reduce_into(group, output, input); }),
              is_odd ? "float32 elements from bfloat16" : "float32 elements from float16");
}

}  // namespace
}  // namespace lockstep::testing
