#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/parameter_server/internal/calls.h"
#include "lockstep/parameter_server/training.h"
#include "tests/ranks/fixture.h"

namespace lockstep::parameter_server {
namespace {

using lockstep::testing::message_of;
using namespace std::chrono_literals;

rpc::MakeOptimizer sgd(double lr) {
  return [lr](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), lr);
  };
}

rpc::MakeOptimizer adam() {
  return [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::Adam>(std::move(parameters), 0.1);
  };
}

// A model of odd sizes, the same everywhere.
std::vector<at::Tensor> parameters_of_formula() {
  std::vector<at::Tensor> parameters;
  for (const std::int64_t size : {1, 7, 13, 101}) {
    parameters.push_back(at::arange(size, at::kFloat).div_(17).requires_grad_());
  }
  return parameters;
}

at::Tensor gradient_of_formula(const at::Tensor& parameter, int trainer, std::int64_t step) {
  return at::arange(parameter.numel(), at::kFloat).add_(1.0 + trainer).div_(3.0 + step).sin_();
}

// The first ranks are servers, the last is always a trainer; in a group of one rank there is none.
class ParameterServers : public ::testing::Test {
 protected:
  using Body = std::function<void(ParameterClient& client)>;

  // Serves on the servers, and runs `body` on the trainers.
  void run(int servers, const Parts& parts, const UpdateRules& rules, const Body& body) {
    std::vector<int> server_ranks;
    for (int rank = 0; rank < servers; ++rank) server_ranks.push_back(rank);
    const int trainers = group_.world_size() - servers;
    const bool is_server = group_.rank() < servers;
    std::optional<Shard> shard;
    std::shared_ptr<ParameterServer> desk;
    if (is_server) {
      shard.emplace(parts, group_.rank(), servers);
      desk = std::make_shared<ParameterServer>(
          *shard, rules, std::vector<std::int64_t>(static_cast<std::size_t>(trainers)));
    }
    const ServedCalls calls(desk);
    const auto session = rpc::init(concat("rank", group_.rank()), group_);
    if (!is_server) {
      ParameterClient client(parts, server_ranks, group_.rank() - servers, trainers);
      body(client);
    }
    group_.barrier();
    rpc::shutdown();
  }

  ProcessGroup group_ = default_process_group();
};

TEST_F(ParameterServers, SynchronousUpdatesHaveTheBitsOfOneProcess) {
  constexpr std::int64_t kSteps = 5;
  for (int servers = 1; servers < group_.world_size(); ++servers) {
    const int trainers = group_.world_size() - servers;
    const auto parameters = parameters_of_formula();
    run(servers, {.parameters = parameters, .optimizer = sgd(0.5)}, {},
        [&](ParameterClient& client) {
          client.pull(0);
          for (std::int64_t step = 0; step < kSteps; ++step) {
            for (const at::Tensor& parameter : parameters) {
              parameter.mutable_grad() = gradient_of_formula(parameter, client.trainer(), step);
            }
            client.push(step);
            client.pull(step + 1);
          }
          const auto expected = parameters_of_formula();
          torch::optim::SGD optimizer(expected, 0.5);
          for (std::int64_t step = 0; step < kSteps; ++step) {
            for (const at::Tensor& parameter : expected) {
              at::Tensor sum = gradient_of_formula(parameter, 0, step);
              for (int trainer = 1; trainer < trainers; ++trainer)
                sum.add_(gradient_of_formula(parameter, trainer, step));
              parameter.mutable_grad() = trainers > 1 ? sum.div_(trainers) : sum;
            }
            optimizer.step();
          }
          for (std::size_t index = 0; index < expected.size(); ++index)
            EXPECT_TRUE(parameters[index].equal(expected[index])) << index << " with " << servers;
        });
  }
}

TEST_F(ParameterServers, EachServerHasAnOptimizerThatRemembers) {
  NEEDS_RANKS(2);
  constexpr std::int64_t kSteps = 4;
  const int servers = group_.world_size() - 1;
  const auto parameters = parameters_of_formula();
  run(servers, {.parameters = parameters, .optimizer = adam()}, {}, [&](ParameterClient& client) {
    const auto expected = parameters_of_formula();
    torch::optim::Adam optimizer(expected, 0.1);
    client.pull(0);
    for (std::int64_t step = 0; step < kSteps; ++step) {
      for (std::size_t index = 0; index < expected.size(); ++index) {
        expected[index].mutable_grad() = gradient_of_formula(expected[index], 0, step);
        parameters[index].mutable_grad() = expected[index].grad().clone();
      }
      client.push(step);
      client.pull(step + 1);
      optimizer.step();
    }
    for (std::size_t index = 0; index < expected.size(); ++index)
      EXPECT_TRUE(parameters[index].allclose(expected[index], 1e-6, 1e-7)) << index;
  });
}

// A net over an embedding learns as one in one process does with all trainers' samples.
TEST_F(ParameterServers, RowsLearnAsAnEmbeddingOfOneProcess) {
  NEEDS_RANKS(2);
  constexpr std::int64_t kRows = 11;
  constexpr std::int64_t kSteps = 6;
  const int servers = std::max(1, group_.world_size() / 2);
  const int trainers = group_.world_size() - servers;
  at::manual_seed(3);
  torch::nn::Linear net(3, 1);
  const Table table{.name = "words", .rows = kRows, .columns = 3, .seed = 5};
  const auto ids_of = [](int trainer, std::int64_t step) {
    return (at::arange(8, at::kLong) * (trainer + 2) + step).remainder(kRows - 1).view({2, 4});
  };
  const Parts parts{.parameters = net->parameters(),
                    .tables = {table},
                    .optimizer = sgd(0.1),
                    .table_optimizer = sgd(0.3)};
  const at::Tensor first = Shard(parts, 0, 1).rows(0, at::arange(kRows, at::kLong));
  torch::nn::Linear one(3, 1);
  {
    const at::NoGradGuard no_grad;
    one->weight.copy_(net->weight);
    one->bias.copy_(net->bias);
  }
  run(servers, parts, {}, [&](ParameterClient& client) {
    client.pull(0);
    at::Tensor embedding = first.clone().requires_grad_();
    std::vector<at::Tensor> all = one->parameters();
    torch::optim::SGD optimizer(all, 0.1);
    torch::optim::SGD of_rows(std::vector<at::Tensor>{embedding}, 0.3);
    for (std::int64_t step = 0; step < kSteps; ++step) {
      net->zero_grad();
      const at::Tensor ids = ids_of(client.trainer(), step);
      // The same row twice in one step, by two look-ups.
      const at::Tensor rows = client.look_up("words", ids) + client.look_up("words", ids.flip({0}));
      EXPECT_EQ(rows.sizes(), (std::vector<std::int64_t>{2, 4, 3}));
      net->forward(rows).tanh().mean().backward();
      client.push(step);
      client.pull(step + 1);

      optimizer.zero_grad();
      of_rows.zero_grad();
      for (int trainer = 0; trainer < trainers; ++trainer) {
        const at::Tensor own = ids_of(trainer, step);
        const at::Tensor sum = embedding.index({own}) + embedding.index({own.flip({0})});
        (one->forward(sum).tanh().mean() / trainers).backward();
      }
      optimizer.step();
      of_rows.step();
    }
    EXPECT_TRUE(net->weight.allclose(one->weight, 1e-5, 1e-6));
    client.finish();
    const at::NoGradGuard no_grad;
    const at::Tensor learned = client.look_up("words", at::arange(kRows, at::kLong));
    EXPECT_TRUE(learned.allclose(embedding, 1e-5, 1e-6));
    EXPECT_TRUE(learned[kRows - 1].equal(first[kRows - 1])) << "nobody has asked for it";
    EXPECT_EQ(client.look_up("words", at::empty({0, 2}, at::kLong)).sizes(),
              (std::vector<std::int64_t>{0, 2, 3}));
  });
}

TEST_F(ParameterServers, NoTrainerIsFurtherAheadThanTheStaleness) {
  NEEDS_RANKS(2);
  constexpr std::int64_t kSteps = 30;
  for (const std::int64_t staleness : {0, 2}) {
    const auto parameter = at::zeros({3}).requires_grad_();
    const int trainers = group_.world_size() - 1;
    run(1, {.parameters = {parameter}, .optimizer = sgd(1)}, {.staleness = staleness},
        [&](ParameterClient& client) {
          client.pull(0);
          for (std::int64_t step = 0; step < kSteps; ++step) {
            parameter.mutable_grad() = at::full({3}, -1.0);
            client.push(step);
            client.pull(step + 1);
            // What it sees: all of its own updates, and of each other at least step + 1 -
            // staleness.
            const auto seen = static_cast<std::int64_t>(parameter[0].item<float>());
            EXPECT_GE(seen,
                      step + 1 + (trainers - 1) * std::max<std::int64_t>(0, step + 1 - staleness));
          }
          client.finish();
          client.pull(kSteps);
          EXPECT_TRUE(parameter.equal(at::full({3}, static_cast<double>(kSteps * trainers))));
        });
  }
}

TEST_F(ParameterServers, ServersWithoutAnyRowOrElement) {
  NEEDS_RANKS(3);
  const int servers = group_.world_size() - 1;  // For one element, and one row.
  const auto parameter = at::zeros({1}).requires_grad_();
  const Parts parts{.parameters = {parameter},
                    .tables = {{.name = "words", .rows = 1, .columns = 2}},
                    .optimizer = sgd(1),
                    .table_optimizer = sgd(1)};
  run(servers, parts, {}, [&](ParameterClient& client) {
    client.pull(0);
    const at::Tensor ids = at::zeros({3}, at::kLong);
    const at::Tensor before = client.look_up("words", ids).detach();
    (client.look_up("words", ids).sum() + parameter.sum()).backward();
    client.push(0);
    client.pull(1);
    EXPECT_TRUE(parameter.equal(at::full({1}, -1.0)));
    EXPECT_TRUE(client.look_up("words", ids).allclose(before - 3));
  });
}

TEST_F(ParameterServers, WhoHasLeftIsHeardOf) {
  ServedCalls calls(nullptr);
  const auto session = rpc::init(concat("rank", group_.rank()), group_);
  const int next = (group_.rank() + 1) % group_.world_size();
  std::vector<int> all;
  for (int rank = 0; rank < group_.world_size(); ++rank) all.push_back(rank);
  {
    ProcessExits others;
    EXPECT_EQ(others.has_left(next), next == group_.rank());
    group_.barrier();
    calls.leave();
    int looks = 0;
    others.wait_for(all, 10s, [&] { ++looks; });
    EXPECT_GE(looks, 1);
    for (const int rank : all) EXPECT_TRUE(others.has_left(rank)) << rank;
  }
  rpc::shutdown();
}

TEST_F(ParameterServers, WhatDoesNotFitIsRefused) {
  NEEDS_RANKS(2);
  const auto parameter = at::zeros({3}).requires_grad_();
  const Parts parts{.parameters = {parameter},
                    .tables = {{.name = "words", .rows = 5, .columns = 2}},
                    .optimizer = sgd(1),
                    .table_optimizer = sgd(1)};
  run(1, parts, {}, [&](ParameterClient& client) {
    const auto ids = at::tensor({0, 5}, at::kLong);
    EXPECT_SAYS(message_of<UsageError>([&] { client.look_up("words", ids); }), "it has 5 rows");
    EXPECT_SAYS(message_of<UsageError>([&] { client.look_up("word", ids); }), "no table 'word'");
    EXPECT_SAYS(message_of<UsageError>([&] { client.look_up("words", at::zeros({1})); }), "Long");
    EXPECT_SAYS(message_of<rpc::RemoteError>([&] { client.push(1); }),
                "which has completed 0 steps");
    EXPECT_SAYS(message_of<rpc::RemoteError>([&] { client.pull(1); }), "values after step 1");
    const auto push = [&](const at::Tensor& dense, const at::Tensor& rows) {
      rpc::call<void>(0, kPush, client.trainer(), 0, dense, std::vector<at::Tensor>{rows},
                      std::vector<at::Tensor>{at::zeros({1, 2})});
    };
    const auto row = at::zeros({1}, at::kLong);
    EXPECT_SAYS(message_of<rpc::RemoteError>([&] { push(at::zeros({4}), row); }),
                "gradients have 4 elements");
    EXPECT_SAYS(message_of<rpc::RemoteError>([&] { push(at::zeros({3}), row + 5); }), "has 5");
  });
}

}  // namespace
}  // namespace lockstep::parameter_server
