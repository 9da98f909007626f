#include "lockstep/profile/step_timer.h"

#include <functional>
#include <memory>
#include <numeric>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "tests/ranks/ddp_fixture.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

class StepTimes : public DdpTest {
 protected:
  static std::chrono::nanoseconds of(const StepSummary& summary, int rank, StepPhase phase) {
    return summary.ranks.at(static_cast<std::size_t>(rank)).mean[static_cast<std::size_t>(phase)];
  }
  bool is_last_rank() const { return rank_ == world_size_ - 1; }

  const std::shared_ptr<StepTimer> timer_ = std::make_shared<StepTimer>();
};

TEST_F(StepTimes, TheRankThatComesLastIsTheStraggler) {
  constexpr int kSteps = 5;
  for (int step = 0; step < kSteps; ++step) {
    if (is_last_rank()) {  // It gets its batch when all others have arrived.
      const auto data = timer_->phase(StepPhase::kData);
      for (int rank = 0; rank < rank_; ++rank) group_.recv(at::empty({1}), rank);
    }
    timer_->arrive();
    if (!is_last_rank()) group_.send(at::zeros({1}), world_size_ - 1);
    group_.barrier();
    timer_->end_step();
  }
  const StepSummary summary = timer_->summarize(group_);
  EXPECT_EQ(summary.steps, kSteps);
  ASSERT_EQ(summary.ranks.size(), static_cast<std::size_t>(world_size_));
  EXPECT_EQ(summary.arrivals_compared, kSteps);
  EXPECT_EQ(summary.ranks.back().arrived_last, kSteps);
  EXPECT_EQ(summary.ranks.back().ahead.count(), 0);
  for (int rank = 0; rank + 1 < world_size_; ++rank) {
    EXPECT_GT(summary.ranks[static_cast<std::size_t>(rank)].ahead.count(), 0);
  }
  EXPECT_EQ(summary.straggler.value_or(0), world_size_ - 1);
  EXPECT_EQ(summary.straggler_delay.count() > 0, world_size_ > 1);
}

TEST_F(StepTimes, WhatWasWaitedForBeforeCountsToo) {
  NEEDS_RANKS(2);
  constexpr int kRounds = 50;
  const int last = world_size_ - 1;
  // The others wait for the last rank within the step, so that it arrives before they do.
  for (int step = 0; step < 3; ++step) {
    group_.barrier();
    if (is_last_rank()) {
      const auto data = timer_->phase(StepPhase::kData);
      for (int round = 0; round < kRounds; ++round) {
        for (int rank = 0; rank < last; ++rank) group_.send(at::zeros({1}), rank);
        for (int rank = 0; rank < last; ++rank) group_.recv(at::empty({1}), rank);
      }
    } else {
      const auto waiting = timer_->phase(StepPhase::kExchange);
      for (int round = 0; round < kRounds; ++round) {
        group_.recv(at::empty({1}), last);
        group_.send(at::zeros({1}), last);
      }
      group_.recv(at::empty({1}), last);  // It has arrived.
    }
    timer_->arrive();
    for (int rank = 0; is_last_rank() && rank < last; ++rank) group_.send(at::zeros({1}), rank);
    group_.barrier();
    timer_->end_step();
  }
  EXPECT_EQ(timer_->summarize(group_).straggler, last);
}

TEST_F(StepTimes, TheWrapperMarksItsPhases) {
  constexpr int kSteps = 3;
  DistributedDataParallel model(torch::nn::Linear(7, 3), {.step_timer = timer_});
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    model.backward(model(at::ones({2, 7})).sum(), {.weight = 2});
    const auto update = timer_->phase(StepPhase::kOptimizer);
    optimizer.step();
  }
  const StepSummary summary = timer_->summarize(group_);
  EXPECT_EQ(summary.steps, kSteps);
  for (int rank = 0; rank < world_size_; ++rank) {
    for (const StepPhase phase :
         {StepPhase::kForward, StepPhase::kBackward, StepPhase::kExchange, StepPhase::kOptimizer}) {
      EXPECT_GT(of(summary, rank, phase).count(), 0) << rank << " " << name_of(phase);
    }
    EXPECT_EQ(of(summary, rank, StepPhase::kData).count(), 0);
  }
}

TEST_F(StepTimes, PhasesAddUpToTheTime) {
  using Clock = std::chrono::steady_clock;
  DistributedDataParallel model(torch::nn::Linear(7, 3), {.step_timer = timer_});
  const auto before = Clock::now();
  for (int step = 0; step < 3; ++step) {
    const auto other = timer_->phase(StepPhase::kOther);
    const auto data = timer_->phase(StepPhase::kData);
    {
      const at::NoGradGuard no_grad;
      model(at::ones({2, 7}));  // not followed by a backward pass
    }
    model(at::ones({2, 7})).sum().backward();
  }
  const StepSummary summary = timer_->summarize();
  const auto& mean = summary.ranks[static_cast<std::size_t>(rank_)].mean;
  const auto sum = std::accumulate(mean.begin(), mean.end(), std::chrono::nanoseconds{});
  EXPECT_LE(3 * sum, Clock::now() - before);
  EXPECT_EQ(summary.steps, 3);
}

TEST_F(StepTimes, EachSummaryBeginsAnew) {
  DistributedDataParallel model(torch::nn::Linear(7, 3), {.step_timer = timer_});
  EXPECT_EQ(timer_->summarize().steps, 0);
  for (const int steps : {2, 300, 1}) {  // more than the arrivals that are kept
    for (int step = 0; step < steps; ++step) {
      {
        const auto no_sync = model.no_sync();
        model(at::ones({1, 7})).sum().backward();
      }
      model(at::ones({1, 7})).sum().backward();
    }
    const StepSummary summary = timer_->summarize();
    EXPECT_EQ(summary.steps, steps);
    EXPECT_EQ(summary.arrivals_compared, std::min(steps, 256));
  }
}

TEST_F(StepTimes, DifferentNumbersOfStepsAreRefused) {
  NEEDS_RANKS(2);
  if (is_last_rank()) timer_->arrive();
  EXPECT_SAYS(message_of<UsageError>([&] { timer_->summarize(); }),
              "made 1 steps where rank 0 made 0");
}

}  // namespace
}  // namespace lockstep::testing
