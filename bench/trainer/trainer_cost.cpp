// What Accelerator and Trainer cost: a step in their loops against the same step in one that is
// written by hand, by turns in the same processes and on the same group, so that all see the same
// machine. Prints medians over the turns.
//
//   lockstep run --standalone --nproc-per-node=2 trainer_cost FOLDER [TURNS [STEPS]]
//
// FOLDER: for what the trainer writes.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/os/machine/affinity.h"
#include "lockstep/program/run_main.h"
#include "lockstep/train/trainer.h"

namespace lockstep::bench::trainer_cost {
namespace {

namespace nn = torch::nn;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kInputs = 64;
constexpr std::int64_t kWidth = 256;
constexpr std::int64_t kBatchSize = 32;
constexpr std::int64_t kSamples = 1 << 14;
constexpr int kWarmUpSteps = 20;

struct Rows : torch::data::datasets::BatchDataset<Rows, torch::data::Example<>> {
  at::Tensor inputs = at::randn({kSamples, kInputs});
  at::Tensor targets = at::randint(10, {kSamples}, at::kLong);
  torch::data::Example<> get_batch(torch::ArrayRef<std::size_t> indices) override {
    const at::Tensor chosen = at::empty({static_cast<std::int64_t>(indices.size())}, at::kLong);
    std::ranges::copy(indices, chosen.mutable_data_ptr<std::int64_t>());
    return {inputs.index_select(0, chosen), targets.index_select(0, chosen)};
  }
  std::optional<std::size_t> size() const override { return kSamples; }
};

nn::Sequential make_net() {
  return nn::Sequential(nn::Linear(kInputs, kWidth), nn::ReLU(), nn::Linear(kWidth, kWidth),
                        nn::ReLU(), nn::Linear(kWidth, 10));
}

double microseconds(Clock::time_point begin, int steps) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / steps;
}

double by_hand(const Rows& rows, int steps) {
  nn::Sequential net = make_net();
  DistributedDataParallel model(net);
  torch::optim::Adam optimizer(net->parameters(), 1e-3);
  DistributedSampler sampler(kSamples);
  auto loader = torch::data::make_data_loader(rows, sampler, kBatchSize);
  int step = 0;
  Clock::time_point begin;
  for (int epoch = 0;; ++epoch) {
    sampler.set_epoch(static_cast<std::uint64_t>(epoch));
    for (auto& batch : *loader) {
      if (step == kWarmUpSteps) begin = Clock::now();
      if (step == kWarmUpSteps + steps) return microseconds(begin, steps);
      optimizer.zero_grad();
      const at::Tensor loss = at::cross_entropy_loss(model.forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      ++step;
    }
  }
}

double accelerated(const Rows& rows, int steps) {
  Accelerator accelerator;
  nn::Sequential net = make_net();
  torch::optim::Adam adam(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  auto loader = accelerator.make_data_loader(rows, {.batch_size = kBatchSize});
  int step = 0;
  Clock::time_point begin;
  for (;;) {
    for (auto& batch : loader) {
      if (step == kWarmUpSteps) begin = Clock::now();
      if (step == kWarmUpSteps + steps) return microseconds(begin, steps);
      optimizer.zero_grad();
      const at::Tensor loss = at::cross_entropy_loss(model.forward(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      ++step;
    }
  }
}

struct Toy : lockstep::Task<nn::SequentialImpl> {
  std::shared_ptr<nn::SequentialImpl> configure_model() override { return make_net().ptr(); }
  std::unique_ptr<torch::optim::Optimizer> configure_optimizer(nn::SequentialImpl& net) override {
    return std::make_unique<torch::optim::Adam>(net.parameters(), 1e-3);
  }
  at::Tensor training_step(Model& model, Batch& batch, StepContext&) override {
    return at::cross_entropy_loss(model.forward(batch.data), batch.target);
  }
};

double trained(const Rows& rows, int steps, const std::string& folder) {
  Toy task;
  Trainer trainer({.max_duration = std::to_string(kWarmUpSteps + steps) + "ba",
                   .batch_size = kBatchSize,

                   .enable_progress_bar = false,
                   .directory = folder,
                   .resume = false,
                   .save_interval = ""});
  int step = 0;
  Clock::time_point begin;
  double took = 0;
  trainer.add(LambdaCallback({.on_train_batch_end = [&](TrainerState&) {
    ++step;
    if (step == kWarmUpSteps) begin = Clock::now();
    if (step == kWarmUpSteps + steps) took = microseconds(begin, steps);
  }}));
  trainer.fit(task, rows);
  return took;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

int run(const std::string& folder, int turns, int steps) {
  const ProcessGroup group = init_process_group();
  const std::vector<int> cpus = allowed_cpus();
  const auto rank = static_cast<std::size_t>(group.rank());
  if (static_cast<std::size_t>(group.world_size()) <= cpus.size()) pin_to_cpu(cpus[rank]);
  at::set_num_threads(1);
  const Rows rows;
  std::vector<double> hand;
  std::vector<double> accelerator;
  std::vector<double> trainer;
  for (int turn = 0; turn < turns; ++turn) {
    // Each comes first, second and last as often.
    std::array<double, 3> took{};
    for (int i = 0; i < 3; ++i) {
      const int which = (i + turn) % 3;
      took[which] = which == 0   ? by_hand(rows, steps)
                    : which == 1 ? accelerated(rows, steps)
                                 : trained(rows, steps, folder + "/" + std::to_string(turn));
    }
    hand.push_back(took[0]);
    accelerator.push_back(took[1] / took[0]);
    trainer.push_back(took[2] / took[0]);
  }
  if (group.rank() == 0) {
    std::printf(
        "%d ranks, %d turns of %d steps: by hand %.1f us a step, Accelerator %+.2f %%, "
        "Trainer %+.2f %%\n",
        group.world_size(), turns, steps, median(hand), 100 * (median(accelerator) - 1),
        100 * (median(trainer) - 1));
  }
  return 0;
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_main([&] {
    if (argc < 2 || argc > 4) throw UsageError("trainer_cost FOLDER [TURNS [STEPS]]");
    return run(argv[1], argc > 2 ? std::stoi(argv[2]) : 21, argc > 3 ? std::stoi(argv[3]) : 200);
  });
}

}  // namespace lockstep::bench::trainer_cost
