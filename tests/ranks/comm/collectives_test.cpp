#include <cmath>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/init_process_group.h"
#include "tests/ranks/fixture.h"
#include "tests/ranks/formula.h"

namespace lockstep::testing {
namespace {

class Collectives : public Conformance {
 protected:
  // Runs body(dtype, numel, op) for every combination that is defined.
  template <class Body>
  void for_all_reductions(Body&& body) const {
    for_all_tensors([&](at::ScalarType dtype, std::int64_t numel) {
      for (const ReduceOp op : reductions(dtype)) {
        SCOPED_TRACE("op " + std::to_string(static_cast<int>(op)));
        body(dtype, numel, op);
      }
    });
  }
};

TEST_F(Collectives, Broadcast) {
  for_all_tensors([&](at::ScalarType dtype, std::int64_t numel) {
    for (int source = 0; source < world_size_; ++source) {
      at::Tensor tensor = formula(rank_, numel, dtype);
      group_.broadcast(tensor, source);
      EXPECT_TRUE(matches(tensor, formula(source, numel, dtype)));
    }
  });
}

TEST_F(Collectives, AllReduce) {
  for (const Memory memory : memories()) {
    Tensors results;
    for_all_reductions([&](at::ScalarType dtype, std::int64_t numel, ReduceOp op) {
      at::Tensor tensor = place(formula(rank_, numel, dtype), memory);
      group_.all_reduce(tensor, {.op = op});
      EXPECT_TRUE(matches(tensor, reduced_formula(world_size_, numel, dtype, op)));
      results.push_back(tensor);
    });
    EXPECT_TRUE(same_bits_everywhere(results));
  }
}

TEST_F(Collectives, Reduce) {
  for_all_reductions([&](at::ScalarType dtype, std::int64_t numel, ReduceOp op) {
    const int target = world_size_ - 1;
    at::Tensor tensor = formula(rank_, numel, dtype);
    group_.reduce(tensor, target, {.op = op});
    if (rank_ == target) {
      EXPECT_TRUE(matches(tensor, reduced_formula(world_size_, numel, dtype, op)));
    }
  });
}

TEST_F(Collectives, ReduceScatter) {
  for_all_reductions([&](at::ScalarType dtype, std::int64_t numel, ReduceOp op) {
    Tensors inputs;
    for (int part = 0; part < world_size_; ++part) {
      inputs.push_back(formula(rank_, numel, dtype, part * numel));
    }
    const at::Tensor expected = reduced_formula(world_size_, numel, dtype, op, rank_ * numel);
    at::Tensor output = zeros(numel, dtype);
    group_.reduce_scatter(output, inputs, {.op = op});
    EXPECT_TRUE(matches(output, expected));
    output.zero_();
    group_.reduce_scatter_tensor(output, formula(rank_, numel * world_size_, dtype), {.op = op});
    EXPECT_TRUE(matches(output, expected));
  });
}

TEST_F(Collectives, MinAndMaxGiveNanWhereAnyRankHasOne) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      // Element r is NaN on rank r, the next of either sign on all; then infinities and numbers.
      const auto of = [&](int rank) {
        at::Tensor values = at::full({world_size_ + 6}, 7.0, at::kDouble);
        values[rank] = rank % 2 == 0 ? NAN : -NAN;
        values[world_size_] = NAN;
        values[world_size_ + 1] = -NAN;
        values[world_size_ + 2] = rank == 0 ? INFINITY : -1.0;
        values[world_size_ + 3] = rank == 0 ? -INFINITY : 1.0;
        values[world_size_ + 4] = -1.5 - rank;
        values[world_size_ + 5] = rank - 1.25;
        return values.to(dtype);
      };
      at::Tensor expected = of(0);
      for (int rank = 1; rank < world_size_; ++rank) {
        expected = op == ReduceOp::kMin ? at::minimum(expected, of(rank))
                                        : at::maximum(expected, of(rank));
      }
      const auto check = [&](const at::Tensor& actual, const char* call) {
        EXPECT_TRUE(at::allclose(actual, expected, 0, 0, /*equal_nan=*/true))
            << call << ' ' << name_of(op) << ' ' << dtype << actual;
      };
      at::Tensor values = of(rank_);
      group_.all_reduce(values, {.op = op});
      check(values, "all_reduce");
      EXPECT_TRUE(same_bits_everywhere({values}));
      values = of(rank_);
      group_.all_reduce(values, {.op = op, .async_op = true}).wait();
      check(values, "asynchronous all_reduce");
      values = of(rank_);
      group_.reduce(values, world_size_ - 1, {.op = op});
      if (rank_ == world_size_ - 1) check(values, "reduce");
      at::Tensor output = at::zeros_like(expected);
      group_.reduce_scatter(output, Tensors(static_cast<std::size_t>(world_size_), of(rank_)),
                            {.op = op});
      check(output, "reduce_scatter");
      output.zero_();
      group_.reduce_scatter_tensor(output, of(rank_).repeat({world_size_}), {.op = op});
      check(output, "reduce_scatter_tensor");
    }
  }
}

TEST_F(Collectives, AllGather) {
  for_all_tensors([&](at::ScalarType dtype, std::int64_t numel) {
    const at::Tensor input = formula(rank_, numel, dtype);
    const Tensors gathered = outputs(numel, dtype);
    group_.all_gather(gathered, input);
    at::Tensor flat = zeros(world_size_ * numel, dtype);
    group_.all_gather_into_tensor(flat, input);
    for (int rank = 0; rank < world_size_; ++rank) {
      EXPECT_TRUE(matches(gathered[rank], formula(rank, numel, dtype)));
      EXPECT_TRUE(matches(flat.narrow(0, rank * numel, numel), formula(rank, numel, dtype)));
    }
  });
}

TEST_F(Collectives, Gather) {
  for_all_tensors([&](at::ScalarType dtype, std::int64_t numel) {
    for (int target = 0; target < world_size_; ++target) {
      const Tensors gathered = rank_ == target ? outputs(numel, dtype) : Tensors{};
      group_.gather(gathered, formula(rank_, numel, dtype), target);
      for (std::size_t rank = 0; rank < gathered.size(); ++rank) {
        EXPECT_TRUE(matches(gathered[rank], formula(static_cast<int>(rank), numel, dtype)));
      }
    }
  });
}

TEST_F(Collectives, Scatter) {
  for_all_tensors([&](at::ScalarType dtype, std::int64_t numel) {
    for (int source = 0; source < world_size_; ++source) {
      Tensors inputs;
      if (rank_ == source) {
        for (int rank = 0; rank < world_size_; ++rank) {
          inputs.push_back(formula(source, numel, dtype, rank));
        }
      }
      at::Tensor output = zeros(numel, dtype);
      group_.scatter(output, inputs, source);
      EXPECT_TRUE(matches(output, formula(source, numel, dtype, rank_)));
    }
  });
}

TEST_F(Collectives, AllToAll) {
  for_all_tensors([&](at::ScalarType dtype, std::int64_t numel) {
    Tensors inputs;
    for (int rank = 0; rank < world_size_; ++rank) {
      inputs.push_back(formula(rank_, numel, dtype, rank));
    }
    const Tensors received = outputs(numel, dtype);
    group_.all_to_all(received, inputs);
    at::Tensor flat = zeros(world_size_ * numel, dtype);
    group_.all_to_all_single(flat, at::cat(inputs));
    for (int rank = 0; rank < world_size_; ++rank) {
      const at::Tensor expected = formula(rank, numel, dtype, rank_);
      EXPECT_TRUE(matches(received[rank], expected));
      EXPECT_TRUE(matches(flat.narrow(0, rank * numel, numel), expected));
    }
  });
}

TEST_F(Collectives, AllToAllWithSizesThatDiffer) {
  // Rank a sends a + b elements to rank b.
  Tensors inputs;
  Tensors received;
  std::vector<std::int64_t> splits;
  for (int rank = 0; rank < world_size_; ++rank) {
    splits.push_back(rank_ + rank);
    inputs.push_back(formula(rank_, rank_ + rank, at::kFloat, rank));
    received.push_back(zeros(rank_ + rank, at::kFloat));
  }
  group_.all_to_all(received, inputs);
  at::Tensor flat = at::zeros_like(at::cat(inputs));
  group_.all_to_all_single(flat, at::cat(inputs), splits, splits);
  EXPECT_TRUE(matches(flat, at::cat(received)));
  for (int rank = 0; rank < world_size_; ++rank) {
    EXPECT_TRUE(matches(received[rank], formula(rank, rank_ + rank, at::kFloat, rank_)));
  }
}

TEST_F(Collectives, SendAndReceiveAroundARing) {
  if (world_size_ == 1) {
    EXPECT_THROW(group_.send(at::zeros({1}), 0), UsageError);
    return;
  }
  const int next = (rank_ + 1) % world_size_;
  const int previous = (rank_ + world_size_ - 1) % world_size_;
  for_all_tensors([&](at::ScalarType dtype, std::int64_t numel) {
    at::Tensor received = zeros(numel, dtype);
    const Work sent = group_.send(formula(rank_, numel, dtype), next, 3, {.async_op = true});
    group_.recv(received, previous, 3);
    sent.wait();
    sent.wait();  // Waiting again is nothing.
    EXPECT_TRUE(sent.is_completed());
    EXPECT_TRUE(matches(received, formula(previous, numel, dtype)));
  });
}

TEST_F(Collectives, ReductionsAreTheSameBitsOnEveryRankAndInEveryRun) {
  // Values whose sum and product depend on the order in which they are combined.
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const std::int64_t numel : {3, 10'007, 300'007}) {
      for (const auto op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct}) {
        const at::Tensor input =
            (at::sin(at::arange(numel, at::kFloat) * (rank_ + 1)) * 1e2).to(group_.device(), dtype);
        at::Tensor first = input.clone();
        group_.all_reduce(first, {.op = op});
        at::Tensor again = input.clone();
        group_.all_reduce(again, {.op = op});
        EXPECT_TRUE(at::equal(first, again));
        EXPECT_TRUE(same_bits_everywhere({first}));
      }
    }
  }
}

// Values whose sum depends on the order: over several pieces, and with sizes that no piece divides.
TEST_F(Collectives, ReduceScatterHasTheBitsOfAllReduceWhereBothSumInOneOrder) {
  if (group_.backend_name() == "gloo") GTEST_SKIP() << "its orders depend on places in messages";
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t numel : {1, 3, 10'007, 700'001}) {
      for (const auto op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        const at::Tensor input =
            (at::sin(at::arange(numel * world_size_, at::kFloat) * (rank_ + 1)) * 1e2)
                .to(group_.device(), dtype);
        const at::Tensor whole = input.clone();
        group_.all_reduce(whole, {.op = op});
        const at::Tensor own = at::empty({numel}, input.options());
        group_.reduce_scatter_tensor(own, input, {.op = op});
        EXPECT_TRUE(at::equal(own, whole.narrow(0, rank_ * numel, numel)))
            << dtype << ' ' << numel << ' ' << name_of(op);
        const at::Tensor gathered = at::empty_like(whole);
        group_.all_gather_into_tensor(gathered, own);
        EXPECT_TRUE(at::equal(gathered, whole)) << dtype << ' ' << numel;
      }
    }
  }
}

// The input is where the chunk of another rank goes. Longer than what shared memory takes at once.
TEST_F(Collectives, AllGatherFromThePlaceOfAnotherRanksChunk) {
  if (group_.backend_name() != "shm" && group_.backend_name() != "hierarchical") {
    GTEST_SKIP() << "MPI refuses it";
  }
  const std::int64_t numel = 300'007;
  const int place = (rank_ + 1) % world_size_;
  const at::Tensor output = zeros(numel * world_size_, at::kFloat);
  const at::Tensor input = output.narrow(0, place * numel, numel);
  input.copy_(formula(rank_, numel, at::kFloat));
  group_.all_gather_into_tensor(output, input);
  for (int rank = 0; rank < world_size_; ++rank) {
    EXPECT_TRUE(matches(output.narrow(0, rank * numel, numel), formula(rank, numel, at::kFloat)));
  }
}

// More pieces than are under way at a time, of calls one behind the other; compared, a call waits
// for what is compared, but not for the calls before it.
TEST_F(Collectives, LongCallsOfSeveralKindsAreUnderWayTogether) {
  for (const bool are_compared : {false, true}) {
    const ProcessGroup group = group_of_all({.check_calls = are_compared});
    const std::int64_t numel = 3'000'001;
    const Tensors inputs{formula(rank_, numel, at::kFloat), formula(rank_, numel, at::kFloat, 5)};
    at::Tensor gathered = zeros(numel * world_size_, at::kFloat);
    at::Tensor sent = formula(rank_, numel, at::kFloat, 9);
    at::Tensor summed = inputs[1].clone();
    at::Tensor part = zeros(numel, at::kFloat);
    const at::Tensor all = formula(rank_, numel * world_size_, at::kFloat);
    std::vector<Work> works;
    works.push_back(group.all_gather_into_tensor(gathered, inputs[0], {.async_op = true}));
    works.push_back(group.broadcast(sent, world_size_ - 1, {.async_op = true}));
    works.push_back(group.reduce_scatter_tensor(part, all, {.async_op = true}));
    works.push_back(group.all_reduce(summed, {.async_op = true}));
    for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
    for (int rank = 0; rank < world_size_; ++rank) {
      EXPECT_TRUE(
          matches(gathered.narrow(0, rank * numel, numel), formula(rank, numel, at::kFloat)));
    }
    EXPECT_TRUE(matches(sent, formula(world_size_ - 1, numel, at::kFloat, 9)));
    EXPECT_TRUE(matches(
        part, reduced_formula(world_size_, numel, at::kFloat, ReduceOp::kSum, rank_ * numel)));
    EXPECT_TRUE(
        matches(summed, reduced_formula(world_size_, numel, at::kFloat, ReduceOp::kSum, 5)));
  }
}

}  // namespace
}  // namespace lockstep::testing
