// What ResilientTraining costs while nothing fails:
// cost_worker adam|momentum|sgd WIDTH TURNS STEPS MEMORY_EVERY [FOLDER]. By turns so many steps in
// a plain loop and the same steps in its loop, in the same processes and on the same group, so that
// both see the same machine. Prints, as JSON, the milliseconds of a step in each turn. FOLDER: of
// snapshots, so that the ranks agree before each step whether they are preempted.
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "bench/recovery/one_processor.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/program/run_main.h"
#include "lockstep/train/resilient_training.h"

namespace lockstep::bench::cost_worker {
namespace {

namespace nn = torch::nn;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kInputs = 64;
constexpr std::int64_t kBatchSize = 32;
constexpr std::int64_t kWarmUpSteps = 20;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        const nn::Sequential& net) {
  constexpr double kLearningRate = 1e-4;
  if (name == "momentum") {
    return std::make_unique<torch::optim::SGD>(
        net->parameters(), torch::optim::SGDOptions(kLearningRate).momentum(0.9));
  }
  if (name == "sgd") return std::make_unique<torch::optim::SGD>(net->parameters(), kLearningRate);
  return std::make_unique<torch::optim::Adam>(net->parameters(), kLearningRate);
}

int run(const std::string& optimizer_name, std::int64_t width, std::int64_t turns,
        std::int64_t turn_steps, const ResilientOptions& options) {
  nn::Sequential net(nn::Linear(kInputs, width), nn::ReLU(), nn::Linear(width, width), nn::ReLU(),
                     nn::Linear(width, kInputs));
  const auto optimizer = make_optimizer(optimizer_name, net);
  const at::Tensor inputs = at::randn({kBatchSize, kInputs});
  std::vector<double> plain, resilient;
  ResilientTraining training({.model = net.ptr(), .optimizer = optimizer.get()}, options);
  training.run(kWarmUpSteps + turns * turn_steps + 1, [&](const ProcessGroup& group) {
    use_one_processor(group);
    using Model = DistributedDataParallel<nn::SequentialImpl>;
    const auto model = std::make_shared<Model>(net.ptr());
    const auto make_step = [&, model] {
      optimizer->zero_grad();
      at::mse_loss(model->forward(inputs), inputs).backward();
      optimizer->step();
    };
    return [&, make_step, begin = Clock::time_point()](std::int64_t step) mutable {
      if (step >= kWarmUpSteps && (step - kWarmUpSteps) % turn_steps == 0) {
        if (step > kWarmUpSteps)
          resilient.push_back(milliseconds_since(begin) / static_cast<double>(turn_steps));
        if (resilient.size() == static_cast<std::size_t>(turns)) return;
        begin = Clock::now();
        for (std::int64_t i = 0; i < turn_steps; ++i) make_step();
        plain.push_back(milliseconds_since(begin) / static_cast<double>(turn_steps));
        begin = Clock::now();
      }
      make_step();
    };
  });
  if (training.process_group().rank() == 0) {
    std::cout << nlohmann::json{{"plain_ms", plain}, {"resilient_ms", resilient}} << "\n";
  }
  return 0;
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_main([&] {
    const auto number = [&](int at) {
      return argc > at ? parse_number<std::int64_t>(argv[at]) : std::nullopt;
    };
    if (!number(2) || !number(3) || !number(4) || !number(5)) {
      throw UsageError("cost_worker: run it by bench/recovery/cost.py");
    }
    return run(
        argv[1], *number(2), *number(3), *number(4),
        {.memory_every = static_cast<int>(*number(5)), .directory = argc > 6 ? argv[6] : ""});
  });
}

}  // namespace lockstep::bench::cost_worker
