#include "lockstep/train/resilient_training.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Under a launcher: tests/python/recovery/live_recovery.py.
TEST(ResilientTrainingAlone, IsAPlainLoopOnce) {
  torch::nn::Linear net(1, 1);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  ResilientTraining training({.model = net.ptr(), .optimizer = &optimizer});
  EXPECT_FALSE(training.process_group());
  std::vector<std::int64_t> made;
  const auto make_step = [&](const ProcessGroup& group) {
    EXPECT_EQ(group.world_size(), 1);
    return [&](std::int64_t step) { made.push_back(step); };
  };
  EXPECT_EQ(training.run(3, make_step), TrainingEnd::kDone);
  EXPECT_EQ(made, (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(training.steps_done(), 3);
  EXPECT_THROW(training.run(6, make_step), UsageError);
  EXPECT_THROW(ResilientTraining({.model = net.ptr()}), UsageError) << "there is a group";
  destroy_process_group();
}

TEST(ResilientTrainingAlone, PassesErrorsOn) {
  torch::nn::Linear net(1, 1);
  {
    ResilientTraining training({.model = net.ptr()});
    EXPECT_THROW(training.run(3,
                              [](const ProcessGroup&) -> ResilientTraining::Step {
                                return [](std::int64_t) { throw PeerLost("gone"); };
                              }),
                 PeerLost);
  }
  destroy_process_group();
}

TEST(ResilientTrainingAlone, RefusesWhatCannotBe) {
  torch::nn::Linear net(1, 1);
  EXPECT_THROW(ResilientTraining({}), UsageError);
  EXPECT_THROW(ResilientTraining({.model = net.ptr()}, {.directory = "somewhere"}), UsageError);
  EXPECT_THROW(ResilientTraining({.model = net.ptr()}, {.save_interval = 3}), UsageError);
}

}  // namespace
}  // namespace lockstep
