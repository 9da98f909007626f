// What AcceleratorOptions::recover costs while nothing fails:
// accelerator_cost toy|adam|sharded TURNS STEPS. By turns so many steps in the loop of an
// Accelerator that recovers and in that of one that does not, in the same processes and on the same
// group, so that both see the same machine. Prints, as JSON, the microseconds of a step in each
// turn.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <nlohmann/json.hpp>
#include <torch/data/datasets/base.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "bench/recovery/one_processor.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/program/run_main.h"
#include "lockstep/train/accelerator.h"

namespace lockstep::bench::accelerator_cost {
namespace {

namespace nn = torch::nn;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBatch = 32;  // of a rank
constexpr std::int64_t kWarmUpSteps = 20;
// One batch is soon learnt; gradients would then be subnormal numbers, which are slow.
constexpr double kLearningRate = 1e-9;

// One batch, again and again: what a real dataset takes would hide what is measured.
struct SameRows : torch::data::datasets::BatchDataset<SameRows, torch::data::Example<>> {
  SameRows(std::int64_t rows, std::int64_t inputs, std::int64_t outputs)
      : count(rows), batch{at::randn({kBatch, inputs}), at::randn({kBatch, outputs})} {}
  torch::data::Example<> get_batch(torch::ArrayRef<std::size_t>) override { return batch; }
  std::optional<std::size_t> size() const override { return static_cast<std::size_t>(count); }

  std::int64_t count;
  torch::data::Example<> batch;
};

struct Workload {
  AcceleratorOptions options;
  nn::Sequential net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
};

Workload make_workload(const std::string& name) {
  if (name == "toy") {
    nn::Sequential net(nn::Linear(20, 1));
    auto sgd = std::make_unique<torch::optim::SGD>(net->parameters(), kLearningRate);
    return {.options = {}, .net = net, .optimizer = std::move(sgd), .inputs = 20, .outputs = 1};
  }
  if (name != "adam" && name != "sharded") {
    throw UsageError("accelerator_cost: there are toy, adam and sharded");
  }
  const bool is_sharded = name == "sharded";
  const std::int64_t outside = is_sharded ? 512 : 64;
  const std::int64_t inside = is_sharded ? 2048 : 256;
  nn::Sequential net(nn::Linear(outside, inside), nn::ReLU(), nn::Linear(inside, inside),
                     nn::ReLU(), nn::Linear(inside, outside));
  auto adam = std::make_unique<torch::optim::Adam>(net->parameters(), kLearningRate);
  AcceleratorOptions options;
  if (is_sharded) options.strategy = Strategy::kFullyShard;
  return {.options = options,
          .net = net,
          .optimizer = std::move(adam),
          .inputs = outside,
          .outputs = outside};
}

/// The loop of an accelerator, which `on_step` is called in, with the number of steps so far, until
/// it returns false.
template <class OnStep>
void train(Accelerator& accelerator, Workload& workload, std::int64_t steps, OnStep&& on_step) {
  auto [model, optimizer] = accelerator.prepare(workload.net, *workload.optimizer);
  auto loader = accelerator.make_data_loader(
      SameRows(steps * kBatch * accelerator.num_processes(), workload.inputs, workload.outputs),
      {.batch_size = kBatch, .shuffle = false});
  std::int64_t step = 0;
  for (auto& batch : loader) {
    if (!on_step(step++)) break;
    optimizer.zero_grad();
    accelerator.backward(at::mse_loss(model.forward(batch.data), batch.target));
    optimizer.step();
  }
}

double microseconds(Clock::time_point begin, std::int64_t steps) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() /
         static_cast<double>(steps);
}

int run(const std::string& name, std::int64_t turns, std::int64_t turn_steps) {
  Workload workload = make_workload(name);
  Accelerator recovering(workload.options);
  use_one_processor(recovering.process_group());
  std::vector<double> recovering_us, plain_us;
  Clock::time_point begin;
  const auto plain_turn = [&] {
    Workload fresh = make_workload(name);
    fresh.options.recover = false;
    Accelerator accelerator(fresh.options);
    train(accelerator, fresh, kWarmUpSteps + turn_steps + 1, [&](std::int64_t step) {
      if (step == kWarmUpSteps) begin = Clock::now();
      if (step == kWarmUpSteps + turn_steps) plain_us.push_back(microseconds(begin, turn_steps));
      return step < kWarmUpSteps + turn_steps;
    });
  };
  // The plain turns lie between two steps of the other loop.
  const std::int64_t period = kWarmUpSteps + turn_steps;
  train(recovering, workload, turns * period + 1, [&](std::int64_t step) {
    if (step > 0 && step % period == 0) {
      recovering_us.push_back(microseconds(begin, turn_steps));
      plain_turn();
    }
    if (step % period == kWarmUpSteps) begin = Clock::now();
    return true;
  });
  recovering.end_training();
  if (recovering.is_main_process()) {
    std::cout << nlohmann::json{{"plain_us", plain_us}, {"recovering_us", recovering_us}} << "\n";
  }
  return 0;
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_main([&] {
    const auto number = [&](int at) {
      return argc > at ? parse_number<std::int64_t>(argv[at]) : std::nullopt;
    };
    if (!number(2) || !number(3)) {
      throw UsageError("accelerator_cost: run it by bench/recovery/accelerator_cost.py");
    }
    return run(argv[1], *number(2), *number(3));
  });
}

}  // namespace lockstep::bench::accelerator_cost
