#include "tools/test/self_check.h"

#include <chrono>
#include <cstdint>
#include <iostream>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/replica_check.h"

namespace lockstep::inline internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSteps = 20;
constexpr std::int64_t kSamplesPerRank = 12;
constexpr std::int64_t kInputs = 16;
// Sums in a different order differ in the last bits.
constexpr double kMostDifference = 1e-4;

void expect(const ProcessGroup& group, bool is_right, const std::string& what) {
  if (is_right) return;
  throw Error(concat("lockstep test: ", what, " is wrong on rank ", group.rank(), " over ",
                     group.backend_name(), "; lockstep doctor looks for the cause"));
}

// Each element of rank r is r + 1.
void check_collectives(const ProcessGroup& group) {
  const int ranks = group.world_size();
  for (const std::int64_t size : {0, 1, 31, 1 << 16}) {
    const auto filled = [&](double value) {
      return at::full({size}, value, at::device(group.device()).dtype(at::kFloat));
    };
    at::Tensor sum = filled(group.rank() + 1);
    group.all_reduce(sum).wait();
    expect(group, at::equal(sum, filled(ranks * (ranks + 1) / 2.0)),
           concat("all_reduce of ", size));
    at::Tensor sent = filled(group.rank() + 1);
    group.broadcast(sent, ranks - 1).wait();
    expect(group, at::equal(sent, filled(ranks)), concat("broadcast of ", size));
    std::vector<at::Tensor> gathered;
    for (int rank = 0; rank < ranks; ++rank) gathered.push_back(filled(0));
    group.all_gather(gathered, filled(group.rank() + 1)).wait();
    for (int rank = 0; rank < ranks; ++rank) {
      expect(group, at::equal(gathered[static_cast<std::size_t>(rank)], filled(rank + 1)),
             concat("all_gather of ", size));
    }
  }
}

torch::nn::Sequential make_net() {
  at::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(kInputs, 32), torch::nn::Tanh(),
                               torch::nn::Linear(32, 1));
}

// One process with all samples, and ranks with a shard each, end with the same weights.
void check_training(const ProcessGroup& group) {
  const std::int64_t samples = kSamplesPerRank * group.world_size();
  const at::Tensor inputs =
      (at::arange(samples * kInputs, at::device(group.device()).dtype(at::kFloat)) * 0.7)
          .sin()
          .reshape({samples, kInputs});
  const at::Tensor targets = inputs.sum(1, /*keepdim=*/true).cos();
  const auto train = [&](auto&& forward, const std::vector<at::Tensor>& parameters,
                         const at::Tensor& own_inputs, const at::Tensor& own_targets) {
    torch::optim::Adam optimizer(parameters, torch::optim::AdamOptions(1e-2));
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      at::mse_loss(forward(own_inputs), own_targets).backward();
      optimizer.step();
    }
  };
  torch::nn::Sequential alone = make_net();
  alone->to(group.device());
  train([&](const at::Tensor& batch) { return alone->forward(batch); }, alone->parameters(), inputs,
        targets);
  torch::nn::Sequential net = make_net();
  net->to(group.device());
  DistributedDataParallel model(net, {.process_group = group});
  const std::int64_t first = kSamplesPerRank * group.rank();
  train([&](const at::Tensor& batch) { return model(batch); }, net->parameters(),
        inputs.narrow(0, first, kSamplesPerRank), targets.narrow(0, first, kSamplesPerRank));
  model.check_replicas_agree();
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    const at::Tensor difference = net->parameters()[i] - alone->parameters()[i];
    expect(group, difference.abs().max().item<double>() < kMostDifference, "training");
  }
}

}  // namespace

void check_this_rank() {
  const auto begun = Clock::now();
  const ProcessGroup group = init_process_group();
  const bool is_first = group.rank() == 0;
  const auto say = [&](const auto&... parts) {
    if (is_first) std::cout << concat(parts...) << std::endl;
  };
  say(count_text(group.world_size(), "rank"), " connected, backend ", group.backend_name());
  check_collectives(group);
  say("all_reduce, broadcast and all_gather are exact");
  check_training(group);
  say(kSteps,
      " steps of DistributedDataParallel end with the same bits on all ranks, and with the weights "
      "of one process");
  group.barrier();
  const std::chrono::duration<double> took = Clock::now() - begun;
  say("Test is a success, in ",
      at::round(at::scalar_tensor(took.count() * 100)).item<double>() / 100, " s.");
  destroy_process_group();
}

}  // namespace lockstep::inline internal
