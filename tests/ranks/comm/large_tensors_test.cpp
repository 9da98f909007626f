#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/ranks/fixture.h"
#include "tests/ranks/formula.h"

namespace lockstep::testing {
namespace {

// Tensors larger than what a backend moves at once, from ordinary memory and from the backend's.
class LargeTensors : public Conformance {
 protected:
  template <class Body>
  void for_all_sizes(Body&& body) const {
    for (const Memory memory : memories()) {
      for (const auto numel : kLargeSizes) {
        SCOPED_TRACE(::testing::Message()
                     << numel << " elements, memory " << static_cast<int>(memory));
        body(numel, memory);
      }
    }
  }
};

TEST_F(LargeTensors, AllReduce) {
  for_all_sizes([&](std::int64_t numel, Memory memory) {
    Tensors results;
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kChar}) {
      at::Tensor tensor = place(formula(rank_, numel, dtype), memory);
      group_.all_reduce(tensor);
      EXPECT_TRUE(matches(tensor, reduced_formula(world_size_, numel, dtype, ReduceOp::kSum)));
      results.push_back(tensor);
    }
    EXPECT_TRUE(same_bits_everywhere(results));
  });
}

TEST_F(LargeTensors, ReduceAndBroadcast) {
  const int root = world_size_ - 1;
  for_all_sizes([&](std::int64_t numel, Memory memory) {
    at::Tensor tensor = place(formula(rank_, numel, at::kFloat), memory);
    group_.reduce(tensor, root);
    group_.broadcast(tensor, root);
    EXPECT_TRUE(matches(tensor, reduced_formula(world_size_, numel, at::kFloat, ReduceOp::kSum)));
  });
}

TEST_F(LargeTensors, ReduceScatterAndAllGather) {
  for_all_sizes([&](std::int64_t numel, Memory memory) {
    const at::Tensor input = place(formula(rank_, numel * world_size_, at::kFloat), memory);
    at::Tensor part = place(zeros(numel, at::kFloat), memory);
    group_.reduce_scatter_tensor(part, input);
    at::Tensor whole = place(zeros(numel * world_size_, at::kFloat), memory);
    group_.all_gather_into_tensor(whole, part);
    EXPECT_TRUE(matches(
        whole, reduced_formula(world_size_, numel * world_size_, at::kFloat, ReduceOp::kSum)));
  });
}

TEST_F(LargeTensors, GatherAndScatter) {
  const int root = world_size_ - 1;
  for_all_sizes([&](std::int64_t numel, Memory memory) {
    const Tensors gathered = rank_ == root ? outputs(numel, at::kFloat) : Tensors{};
    group_.gather(gathered, place(formula(rank_, numel, at::kFloat), memory), root);
    at::Tensor back = place(zeros(numel, at::kFloat), memory);
    group_.scatter(back, gathered, root);
    EXPECT_TRUE(matches(back, formula(rank_, numel, at::kFloat)));
  });
}

TEST_F(LargeTensors, AllToAllThereAndBack) {
  for_all_sizes([&](std::int64_t numel, Memory memory) {
    Tensors inputs;
    Tensors back;
    for (int rank = 0; rank < world_size_; ++rank) {
      inputs.push_back(place(formula(rank_, numel, at::kFloat, rank), memory));
      back.push_back(place(zeros(numel, at::kFloat), memory));
    }
    const Tensors received = outputs(numel, at::kFloat);
    group_.all_to_all(received, inputs);
    group_.all_to_all(back, received);
    for (int rank = 0; rank < world_size_; ++rank) {
      EXPECT_TRUE(matches(received[rank], formula(rank, numel, at::kFloat, rank_)));
      EXPECT_TRUE(at::equal(back[rank], inputs[rank]));
    }
  });
}

TEST_F(LargeTensors, SendAndReceiveAroundARing) {
  NEEDS_RANKS(2);
  const int next = (rank_ + 1) % world_size_;
  const int previous = (rank_ + world_size_ - 1) % world_size_;
  for_all_sizes([&](std::int64_t numel, Memory memory) {
    at::Tensor received = place(zeros(numel, at::kFloat), memory);
    const at::Tensor sent = place(formula(rank_, numel, at::kFloat), memory);
    const Work sending = group_.send(sent, next, 0, {.async_op = true});
    group_.recv(received, previous);
    sending.wait();
    EXPECT_TRUE(matches(received, formula(previous, numel, at::kFloat)));
  });
}

}  // namespace
}  // namespace lockstep::testing
