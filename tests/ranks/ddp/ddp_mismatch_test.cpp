#include <functional>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "tests/ranks/ddp_fixture.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

using PlainModel = DistributedDataParallel<torch::nn::LinearImpl>;

// Ranks whose backward passes do not meet: every rank must be told, whatever the shapes.
class DdpMismatch : public DdpTest {
 protected:
  // All but the last rank do `even`, that one `odd`, after `steps` that all do alike. Returns the
  // error.
  std::string refusal(const std::function<void(PlainModel&, PlainModel&)>& even,
                      const std::function<void(PlainModel&, PlainModel&)>& odd, int steps) {
    const ProcessGroup group =
        group_of_all({.timeout = std::chrono::seconds(20), .check_calls = true});
    PlainModel first(torch::nn::Linear(5, 3), {.process_group = group});
    PlainModel second(torch::nn::Linear(5, 3), {.process_group = group});
    for (int step = 0; step < steps; ++step) {
      run(first);
      run(second);
    }
    const std::string message =
        message_of<UsageError>([&] { (rank_ == world_size_ - 1 ? odd : even)(first, second); });
    EXPECT_TRUE(message != "no error" && !message.starts_with("another")) << message;
    group_.barrier();  // Nobody has left with its part of the group while others still use it.
    return message;
  }

  static void run(PlainModel& model) { model(at::ones({2, 5})).sum().backward(); }
};

TEST_F(DdpMismatch, OfTwoModelsOfOneShapeIsRefused) {
  NEEDS_RANKS(2);
  for (const int steps : {0, 1}) {
    const std::string message =
        refusal([](PlainModel& first, PlainModel&) { run(first); },
                [](PlainModel&, PlainModel& second) { run(second); }, steps);
    if (group_.backend_name() == "shm") {
      EXPECT_SAYS(message, "named 'model 1'");
      EXPECT_SAYS(message, "named 'model 0'");
      EXPECT_SAYS(message, "this rank is in backward of model ");
      EXPECT_SAYS(message, ": bias … weight");
    } else {
      EXPECT_SAYS(message, "called backward of model 1, but rank 0 backward of model 0");
    }
  }
}

TEST_F(DdpMismatch, OfAPassAndAnotherCollectiveIsRefused) {
  NEEDS_RANKS(2);
  for (const int steps : {0, 1}) {
    refusal([](PlainModel& first, PlainModel&) { run(first); },
            [](PlainModel& first, PlainModel&) { first.process_group().barrier(); }, steps);
    refusal([](PlainModel& first, PlainModel&) { first.process_group().all_reduce(at::ones({4})); },
            [](PlainModel& first, PlainModel&) { run(first); }, steps);
  }
}

TEST_F(DdpMismatch, OfPassesWithAndWithoutWeightIsRefused) {
  NEEDS_RANKS(2);
  const std::string message = refusal(
      [](PlainModel& first, PlainModel&) {
        first.backward(first(at::ones({2, 5})).sum());
      },
      [](PlainModel& first, PlainModel&) { run(first); }, 1);
  EXPECT_SAYS(message, "weighted pass, model 0");
}

}  // namespace
}  // namespace lockstep::testing
