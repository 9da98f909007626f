// Gradients large enough for a collective of their own: they are averaged where autograd wrote
// them.
#include <cstring>
#include <string>
#include <thread>

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include "lockstep/comm/backends/shm/shm_backend.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/internal/native_collectives.h"
#include "lockstep/ddp/distributed_data_parallel.h"

namespace lockstep::testing {
namespace {

// 600 KB: more than one chunk, and no whole number of them.
constexpr std::int64_t kElements = 150'001;

struct ScaledImpl : torch::nn::Module {
  ScaledImpl() {
    large = register_parameter("large", at::ones({kElements}));
    small = register_parameter("small", at::ones({3}));
  }
  at::Tensor forward(const at::Tensor& factor, bool use_large = true) {
    const at::Tensor rest = small.sum() * factor.sum();
    return use_large ? rest + (large * factor).sum() : rest;
  }
  at::Tensor large;
  at::Tensor small;
};
TORCH_MODULE(Scaled);

class LargeGradient : public ::testing::Test {
 protected:
  // The gradient of `large` on a rank: 1, 2, … times rank + 1, so that each rank's part counts.
  at::Tensor gradient(int rank, double scale = 1) {
    return (at::arange(kElements, at::kFloat).remainder(64) + 1) * (rank + 1) * scale;
  }
  at::Tensor average(double scale = 1) {
    at::Tensor sum = at::zeros({kElements});
    for (int rank = 0; rank < group_.world_size(); ++rank) sum += gradient(rank, scale);
    return sum / group_.world_size();
  }
  void expect_average(const at::Tensor& actual, double scale = 1) {
    EXPECT_TRUE(at::allclose(actual, average(scale), 1e-6, 0));
    at::Tensor of_rank_zero = actual.clone();
    group_.broadcast(of_rank_zero, 0);
    EXPECT_TRUE(at::equal(of_rank_zero, actual));
  }
  // A group of one keeps its gradients where they are.
  bool shares() const { return group_.world_size() > 1 && group_.shares_memory(); }

  ProcessGroup group_ = default_process_group();
  int rank_ = group_.rank();
};

TEST_F(LargeGradient, IsAveragedWhereItLiesAndIsNotWrittenByTheNextBackward) {
  DistributedDataParallel model(Scaled{});
  at::Tensor first;
  for (int step = 1; step <= 3; ++step) {
    model->zero_grad();
    model(gradient(rank_, step)).backward();
    const at::Tensor now = model->large.grad();
    EXPECT_EQ(is_shared(group_, now), shares());
    expect_average(now, step);
    if (step == 1) first = now;
  }
  // Elsewhere it lies in a bucket, which the next step fills.
  if (group_.world_size() == 1 || group_.shares_memory()) expect_average(first);
}

TEST_F(LargeGradient, MayBeOrdinaryMemoryOnSomeRanks) {
  DistributedDataParallel model(Scaled{});
  for (int step = 1; step <= 3; ++step) {
    model->zero_grad();
    const at::Tensor loss = model(gradient(rank_, step));
    // Memory is shared by the thread that ran the forward pass.
    if (rank_ == step % group_.world_size()) {
      std::thread([&] { loss.backward(); }).join();
    } else {
      loss.backward();
    }
    expect_average(model->large.grad(), step);
  }
}

// Each rank watches for itself how far its peers are.
TEST_F(LargeGradient, IsDividedAlikeWhateverDistanceARankSees) {
  auto* const shm = dynamic_cast<ShmBackend*>(group_.c10d_backend().get());
  const auto see = [&](Placement placement) {
    if (shm != nullptr) shm->engine().team().set_placement(placement);
  };
  see(rank_ % 2 == 0 ? Placement::kNear : Placement::kFar);
  Scaled module;
  module->to(at::kDouble);  // 1.2 MB: more than ranks exchange at a time that are near.
  DistributedDataParallel model(module);
  for (int step = 1; step <= 2; ++step) {
    model->zero_grad();
    model(gradient(rank_, step).to(at::kDouble)).backward();
    expect_average(model->large.grad().to(at::kFloat), step);
  }
  see(Placement::kUnknown);
}

TEST_F(LargeGradient, OfOtherStridesIsCopied) {
  DistributedDataParallel model(Scaled{});
  for (int step = 1; step <= 2; ++step) {
    const at::Tensor every_second = at::zeros({2 * kElements});
    model->large.mutable_grad() = every_second.slice(0, 0, 2 * kElements, 2);
    model(gradient(rank_, step)).backward();
    expect_average(model->large.grad(), step);
  }
}

TEST_F(LargeGradient, AddsUpInPlaceAndWithoutSync) {
  DistributedDataParallel model(Scaled{});
  for (int round = 0; round < 2; ++round) {
    model->zero_grad(/*set_to_none=*/round == 0);
    {
      const auto guard = model.no_sync();
      model(gradient(rank_)).backward();
    }
    model(gradient(rank_, 2)).backward();
    expect_average(model->large.grad(), 3);
  }
}

TEST_F(LargeGradient, UnusedOnSomeRanksIsTheOthersShareAndUnusedOnAllStaysUndefined) {
  DistributedDataParallel model(Scaled{});
  const int last = group_.world_size() - 1;
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    model(gradient(rank_), rank_ == last).backward();
    EXPECT_TRUE(at::allclose(model->large.grad(), gradient(last) / group_.world_size(), 1e-6, 0));
    model->zero_grad();
    model(gradient(rank_), false).backward();
    EXPECT_FALSE(model->large.grad().defined());
  }
}

TEST_F(LargeGradient, OutlivesTheModelAndTheGroup) {
  at::Tensor kept;
  {
    std::vector<int> everyone;
    for (int rank = 0; rank < group_.world_size(); ++rank) everyone.push_back(rank);
    DistributedDataParallel model(Scaled(), {.process_group = group_.new_group(everyone)});
    model(gradient(rank_)).backward();
    kept = model->large.grad();
  }
  expect_average(kept);
}

TEST_F(LargeGradient, MemoryOfItsSizeMayBeHadAndFreedByAddressAlone) {
  DistributedDataParallel model(Scaled{});
  const at::Tensor loss = model(gradient(rank_));
  // As convolutions do for what they keep for the length of a call.
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  for (const std::size_t bytes : {kElements * sizeof(float), kElements * sizeof(float) + 64}) {
    void* const memory = allocator->raw_allocate(bytes);
    std::memset(memory, 1, bytes);
    allocator->raw_deallocate(memory);
  }
  loss.backward();
  expect_average(model->large.grad());
}

TEST_F(LargeGradient, OfTwoModelsInTurns) {
  DistributedDataParallel one(Scaled{});
  DistributedDataParallel other(Scaled{});
  const at::Tensor loss = one(gradient(rank_));
  const at::Tensor other_loss = other(gradient(rank_, 5));
  loss.backward();
  other_loss.backward();
  expect_average(one->large.grad());
  expect_average(other->large.grad(), 5);
  EXPECT_EQ(is_shared(group_, one->large.grad()), shares());
  EXPECT_EQ(is_shared(group_, other->large.grad()), shares());
}

}  // namespace
}  // namespace lockstep::testing
