// Collectives and messages of CUDA tensors. The oracle are the formulas of the tests of CPU
// tensors.
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/ranks/cuda/fixture.h"
#include "tests/ranks/formula.h"

namespace lockstep::testing {
namespace {

class CudaCollectives : public CudaTest {
 protected:
  at::Tensor own(int rank, std::int64_t numel, at::ScalarType dtype, std::int64_t first = 0) const {
    return formula(rank, numel, dtype, first).to(device_);
  }
  at::Tensor expected(std::int64_t numel, at::ScalarType dtype, ReduceOp op,
                      std::int64_t first = 0) const {
    return reduced_formula(world_size_, numel, dtype, op, first).to(device_);
  }
  Tensors empty_each(std::int64_t numel, at::ScalarType dtype) const {
    Tensors tensors;
    for (int rank = 0; rank < world_size_; ++rank) {
      tensors.push_back(at::zeros({numel}, on_device(dtype)));
    }
    return tensors;
  }
  void expect_each(const Tensors& tensors, std::int64_t numel, at::ScalarType dtype) const {
    for (int rank = 0; rank < world_size_; ++rank) {
      EXPECT_TRUE(matches(tensors[static_cast<std::size_t>(rank)], own(rank, numel, dtype)));
    }
  }
  static constexpr std::int64_t kNumel = 65'537;
};

TEST_F(CudaCollectives, ReductionsReadWhatWasQueuedBeforeThem) {
  NEEDS_CUDA_TENSORS();
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kBool}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kProduct}) {
      SCOPED_TRACE(::testing::Message() << c10::toString(dtype) << " op " << static_cast<int>(op));
      at::Tensor tensor = at::zeros({kNumel}, on_device(dtype));
      const at::Tensor values = own(rank_, kNumel, dtype);
      delay();
      tensor.copy_(values);
      group_.all_reduce(tensor, {.op = op});
      EXPECT_TRUE(matches(tensor, expected(kNumel, dtype, op)));
    }
  }
}

TEST_F(CudaCollectives, OnesInFlightWriteBeforeWhatIsQueuedBehindTheirWait) {
  NEEDS_CUDA_TENSORS();
  std::vector<Work> works;
  Tensors tensors;
  for (int i = 0; i < 8; ++i) {
    delay();
    tensors.push_back(own(rank_, kNumel + i, at::kFloat));
    works.push_back(group_.all_reduce(tensors.back(), {.async_op = true}));
  }
  for (int i = 7; i >= 0; --i) {
    works[static_cast<std::size_t>(i)].wait();
    const at::Tensor doubled = tensors[static_cast<std::size_t>(i)] * 2;
    EXPECT_TRUE(matches(doubled, expected(kNumel + i, at::kFloat, ReduceOp::kSum) * 2));
  }
}

// As is_completed() says before anybody waits: results of reductions by keys are written then.
TEST_F(CudaCollectives, CompletionThatWasAskedForGivesTheSameResults) {
  NEEDS_CUDA_TENSORS();
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    const at::Tensor tensor = own(rank_, 4'000'037, at::kFloat);
    const Work work = group_.all_reduce(tensor, {.op = op, .async_op = true});
    while (!work.is_completed()) std::this_thread::yield();
    work.wait();
    EXPECT_TRUE(matches(tensor, expected(4'000'037, at::kFloat, op)));
  }
}

TEST_F(CudaCollectives, MoveTensorsBetweenRanks) {
  NEEDS_CUDA_TENSORS();
  const at::ScalarType dtype = at::kFloat;
  for (int root = 0; root < world_size_; ++root) {
    at::Tensor sent = own(rank_, kNumel, dtype);
    group_.broadcast(sent, root);
    EXPECT_TRUE(matches(sent, own(root, kNumel, dtype)));
    const Tensors gathered = rank_ == root ? empty_each(kNumel, dtype) : Tensors();
    group_.gather(gathered, own(rank_, kNumel, dtype), root);
    if (rank_ == root) expect_each(gathered, kNumel, dtype);
    Tensors scattered;
    for (int rank = 0; rank < world_size_ && rank_ == root; ++rank) {
      scattered.push_back(own(rank, kNumel, dtype));
    }
    at::Tensor part = at::zeros({kNumel}, on_device());
    group_.scatter(part, scattered, root);
    EXPECT_TRUE(matches(part, own(rank_, kNumel, dtype)));
    at::Tensor sum = own(rank_, kNumel, dtype);
    group_.reduce(sum, root);
    if (rank_ == root) {
      EXPECT_TRUE(matches(sum, expected(kNumel, dtype, ReduceOp::kSum)));
    }
  }
  const Tensors all = empty_each(kNumel, dtype);
  group_.all_gather(all, own(rank_, kNumel, dtype));
  expect_each(all, kNumel, dtype);
  const at::Tensor flat = at::zeros({world_size_ * kNumel}, on_device());
  group_.all_gather_into_tensor(flat, own(rank_, kNumel, dtype));
  for (int rank = 0; rank < world_size_; ++rank) {
    EXPECT_TRUE(matches(flat.narrow(0, rank * kNumel, kNumel), own(rank, kNumel, dtype)));
  }
  group_.barrier();
}

TEST_F(CudaCollectives, ScatterReductionsAndExchangeParts) {
  NEEDS_CUDA_TENSORS();
  const at::ScalarType dtype = at::kFloat;
  Tensors inputs;
  Tensors sent;
  for (int rank = 0; rank < world_size_; ++rank) {
    inputs.push_back(own(rank_, kNumel, dtype, rank * kNumel));
    sent.push_back(own(rank_ * world_size_ + rank, kNumel, dtype));
  }
  const at::Tensor sums = expected(kNumel, dtype, ReduceOp::kSum, rank_ * kNumel);
  at::Tensor part = at::zeros({kNumel}, on_device());
  group_.reduce_scatter(part, inputs);
  EXPECT_TRUE(matches(part, sums));
  part.zero_();
  group_.reduce_scatter_tensor(part, own(rank_, world_size_ * kNumel, dtype));
  EXPECT_TRUE(matches(part, sums));
  const Tensors received = empty_each(kNumel, dtype);
  group_.all_to_all(received, sent);
  const at::Tensor together = at::zeros({world_size_ * kNumel}, on_device());
  group_.all_to_all_single(together, at::cat(sent));
  for (int rank = 0; rank < world_size_; ++rank) {
    const at::Tensor theirs = own(rank * world_size_ + rank_, kNumel, dtype);
    EXPECT_TRUE(matches(received[static_cast<std::size_t>(rank)], theirs));
    EXPECT_TRUE(matches(together.narrow(0, rank * kNumel, kNumel), theirs));
  }
}

TEST_F(CudaCollectives, MessagesArrive) {
  NEEDS_RANKS(2);
  NEEDS_CUDA_TENSORS();
  const int next = (rank_ + 1) % world_size_;
  const int previous = (rank_ + world_size_ - 1) % world_size_;
  at::Tensor received = at::zeros({kNumel}, on_device());
  delay();
  const at::Tensor sent = own(rank_, kNumel, at::kFloat) + 1;
  if (rank_ == 0) {  // One rank begins: NCCL's send waits for its receiver.
    group_.send(sent, next);
    group_.recv(received, previous);
  } else {
    group_.recv(received, previous);
    group_.send(sent, next);
  }
  EXPECT_TRUE(matches(received, own(previous, kNumel, at::kFloat) + 1));
}

// NCCL would take a message for another one.
TEST_F(CudaCollectives, TagsAreKeptApartOrRefused) {
  NEEDS_RANKS(2);
  NEEDS_CUDA_TENSORS();
  if (rank_ > 1) return;
  const at::Tensor first = own(rank_, 7, at::kFloat);
  const at::Tensor second = own(rank_ + 2, 7, at::kFloat);
  if (group_.backend_name() == "nccl") {
    EXPECT_SAYS(message_of<UsageError>([&] { group_.send(first, 1 - rank_, 3); }), "has no tags");
    EXPECT_SAYS(message_of<UsageError>([&] { group_.recv(first, 1 - rank_, 3); }), "has no tags");
    return;
  }
  if (rank_ == 0) {
    const Work of_first = group_.send(first, 1, 5, {.async_op = true});
    group_.send(second, 1, 6);
    of_first.wait();
    return;
  }
  at::Tensor tensor = at::zeros({7}, on_device());
  group_.recv(tensor, 0, 6);
  EXPECT_TRUE(matches(tensor, own(2, 7, at::kFloat)));
  group_.recv(tensor, 0, 5);
  EXPECT_TRUE(matches(tensor, own(0, 7, at::kFloat)));
}

TEST_F(CudaCollectives, BackendsOfTheHostAloneRefuseCudaTensorsInOneLine) {
  NEEDS_RANKS(2);
  const ProcessGroup group = group_of_all({.backend = "shm"});
  at::Tensor tensor = at::zeros({3}, on_device());
  const std::string message = message_of<UsageError>([&] { group.all_reduce(tensor); });
  EXPECT_SAYS(message, "is on cuda:0, but backend 'shm' takes tensors on cpu");
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST_F(CudaCollectives, NcclRefusesTensorsOfTheHostInOneLine) {
  NEEDS_RANKS(2);
  if (group_.backend_name() != "nccl") GTEST_SKIP() << "of backend nccl";
  at::Tensor tensor = at::zeros({3});
  EXPECT_SAYS(message_of<UsageError>([&] { group_.all_reduce(tensor); }),
              "is on cpu, but backend 'nccl' takes tensors on cuda:0");
}

}  // namespace
}  // namespace lockstep::testing
