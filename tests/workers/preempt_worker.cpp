// Trains a few parameters on data that a formula gives, and makes room when it is told to:
// preempt_worker STEPS FOLDER. Says where it begins, each step on rank 0, and at the end the bits
// of the parameters.
#include <cstdio>
#include <span>
#include <string>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/train/preemption.h"

namespace lockstep::preempt_worker {
namespace {

void say(const ProcessGroup& group, const std::string& line) {
  if (group.rank() != 0) return;
  std::puts(line.c_str());
  std::fflush(stdout);
}

std::string bits_of(torch::nn::LinearImpl& module) {
  std::string text;
  for (const at::Tensor& parameter : module.parameters()) {
    for (const float value : std::span(parameter.data_ptr<float>(), parameter.numel())) {
      char digits[16];
      std::snprintf(digits, sizeof(digits), "%a ", static_cast<double>(value));
      text += digits;
    }
  }
  return text;
}

int run(std::int64_t steps, const std::string& folder) {
  ProcessGroup group = init_process_group();
  Preemption preemption;
  at::manual_seed(0);
  DistributedDataParallel model(torch::nn::Linear(4, 1));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  SnapshotDirectory snapshots(folder);
  const auto resumed = snapshots.load_latest(*model, optimizer);
  const std::int64_t first = resumed ? resumed->step + 1 : 0;
  say(group, concat("begins at ", first));
  for (std::int64_t step = first; step < steps; ++step) {
    if (preemption.requested()) {
      snapshots.save(*model, optimizer, {.step = step - 1});
      say(group, concat("saved ", step - 1));
      return kExitPreempted;
    }
    const at::Tensor inputs =
        (at::arange(8, at::kFloat) * static_cast<double>(step + 1 + group.rank()))
            .sin()
            .view({2, 4});
    optimizer.zero_grad();
    (model->forward(inputs) - inputs.sum(1, true)).square().mean().backward();
    optimizer.step();
    say(group, concat("step ", step));
  }
  say(group, concat("ends with ", bits_of(*model)));
  return 0;
}

}  // namespace

int run_worker(int argc, char** argv) {
  return lockstep::run_main([&] {
    const auto steps = argc == 3 ? lockstep::parse_number<std::int64_t>(argv[1]) : std::nullopt;
    if (!steps) throw lockstep::UsageError("usage: preempt_worker STEPS FOLDER");
    return run(*steps, argv[2]);
  });
}

}  // namespace lockstep::preempt_worker
