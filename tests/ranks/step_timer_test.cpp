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

// Averages once backward is over; before, where it is to, tells the last rank that this one waits.
struct TellLastRank final : CommHook {
  bool tells = false;
  std::string describe() const override { return "tell last rank"; }
  std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override {
    return [this, &group, buffer = bucket.buffer] {
      const int last = group.world_size() - 1;
      if (tells && group.rank() != last) group.send(at::zeros({1}), last);
      group.all_reduce(buffer, {.op = ReduceOp::kAvg});
    };
  }
};

class StepTimes : public DdpTest {
 protected:
  static std::chrono::nanoseconds of(const StepSummary& summary, int rank, StepPhase phase) {
    return summary.ranks.at(static_cast<std::size_t>(rank)).mean[static_cast<std::size_t>(phase)];
  }
  bool is_last_rank() const { return rank_ == world_size_ - 1; }

  const std::shared_ptr<StepTimer> timer_ = std::make_shared<StepTimer>();
};

TEST_F(StepTimes, TheRankThatOthersWaitForIsNamed) {
  constexpr int kSteps = 5;
  const auto hook = std::make_shared<TellLastRank>();
  // Where passes are compared, ranks wait for each other before the hook's turn comes.
  const ProcessGroup group = group_of_all({.check_calls = false});
  DistributedDataParallel model(torch::nn::Linear(7, 3),
                                {.process_group = group, .step_timer = timer_, .comm_hook = hook});
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  for (int step = 0; step <= kSteps; ++step) {
    {
      const auto data = timer_->phase(StepPhase::kData);
      // Its batch comes when all others wait for its gradients.
      for (int rank = 0; hook->tells && is_last_rank() && rank < rank_; ++rank) {
        group.recv(at::empty({1}), rank);
      }
    }
    optimizer.zero_grad();
    model(at::ones({2, 7})).sum().backward();
    {
      const auto update = timer_->phase(StepPhase::kOptimizer);
      optimizer.step();
    }
    if (step > 0) continue;
    timer_->summarize(group_);  // in the first step ranks agree on buckets before they wait
    hook->tells = true;
  }
  const StepSummary summary = timer_->summarize(group_);
  EXPECT_EQ(summary.steps, kSteps);
  ASSERT_EQ(summary.ranks.size(), static_cast<std::size_t>(world_size_));
  EXPECT_EQ(summary.arrivals_compared, kSteps);
  EXPECT_EQ(summary.ranks.back().came_last, kSteps);
  EXPECT_EQ(summary.ranks.back().ahead.count(), 0);
  for (int rank = 0; rank < world_size_; ++rank) {
    for (const StepPhase phase :
         {StepPhase::kForward, StepPhase::kBackward, StepPhase::kExchange, StepPhase::kOptimizer}) {
      EXPECT_GT(of(summary, rank, phase).count(), 0) << rank << " " << name_of(phase);
    }
    if (rank == world_size_ - 1) continue;
    EXPECT_GT(summary.ranks[static_cast<std::size_t>(rank)].ahead.count(), 0);
    // It waits for no less than the other's forward and backward.
    EXPECT_GT(of(summary, rank, StepPhase::kExchange),
              of(summary, world_size_ - 1, StepPhase::kForward));
  }
  EXPECT_EQ(summary.straggler.value_or(0), world_size_ - 1);
  if (world_size_ == 1) return;
  EXPECT_GT(summary.waited_for.count(), 0);
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
  if (world_size_ == 1) return;
  if (is_last_rank()) timer_->arrive();
  EXPECT_SAYS(message_of<UsageError>([&] { timer_->summarize(); }),
              "made 1 steps where rank 0 made 0");
}

}  // namespace
}  // namespace lockstep::testing
