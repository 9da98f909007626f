#include "lockstep/parameter_server/internal/server.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

namespace lockstep::parameter_server {
namespace {

TEST(ParameterServer, ATrainerWaitsOnlyWhereItIsFurtherAheadThanItsStaleness) {
  Shard shard({.parameters = {at::ones({2})},
               .optimizer =
                   [](std::vector<at::Tensor> values) {
                     return std::make_unique<torch::optim::SGD>(std::move(values), 0.1);
                   }},
              0, 1);
  ParameterServer desk(shard, {.staleness = 2}, {0, 0});
  const auto make_step = [&](int trainer, std::int64_t step) {
    desk.push(trainer, step, {.dense = at::ones({2}), .tables = {}});
    return desk.pull(trainer, step + 1);
  };
  EXPECT_TRUE(make_step(0, 0)->completed());
  EXPECT_TRUE(make_step(0, 1)->completed());
  const ParameterServer::Later third = make_step(0, 2);
  EXPECT_FALSE(third->completed());
  EXPECT_TRUE(make_step(1, 0)->completed());
  EXPECT_TRUE(third->completed());
}

}  // namespace
}  // namespace lockstep::parameter_server
