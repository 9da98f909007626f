// A rank for tests/python/faults/pipeline_faults.py: trains replicas of a pipeline until something
// ends it, and tells on stdout when the first step is done, and by which error it ends.
//   pipeline_worker SCHEDULE CHUNKS_PER_RANK REPLICAS
#include <cstdio>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/pipeline/pipeline.h"
#include "lockstep/program/run_main.h"

namespace pipeline_worker {
namespace {

// This process's, of `count` groups of which each is every `step`-th process from a first one on.
lockstep::ProcessGroup own_group(int count, int first_step, int step) {
  const lockstep::ProcessGroup world = lockstep::default_process_group();
  lockstep::ProcessGroup own;
  for (int i = 0; i < count; ++i) {
    std::vector<int> ranks;
    for (int k = 0; k < world.world_size() / count; ++k) ranks.push_back(i * first_step + k * step);
    if (const auto made = world.new_group(ranks)) own = made;
  }
  return own;
}

[[noreturn]] void train_for_ever(const std::string& schedule, int chunks_per_rank, int replicas) {
  namespace nn = torch::nn;
  torch::manual_seed(1);
  nn::Sequential net;
  for (int i = 0; i < 8; ++i) net->push_back(nn::Linear(256, 256));
  const int stages = lockstep::default_process_group().world_size() / replicas;
  lockstep::Pipeline pipeline(net, {.process_group = own_group(replicas, stages, 1),
                                    .replicate_group = own_group(stages, 1, stages),
                                    .schedule = lockstep::pipeline_schedule_of(schedule),
                                    .micro_batches = 8,
                                    .chunks_per_rank = chunks_per_rank});
  torch::optim::SGD optimizer(pipeline.parameters(), 1e-3);
  const at::Tensor batch = at::ones({2048, 256});
  for (bool first = true;; first = false) {
    pipeline.zero_grad();
    pipeline.step(batch, batch, [](const at::Tensor& outputs, const at::Tensor& targets) {
      return at::mse_loss(outputs, targets);
    });
    optimizer.step();
    if (!first) continue;
    std::printf("running\n");
    std::fflush(stdout);
  }
}

}  // namespace

int run_worker(int argc, char** argv) {
  return lockstep::run_main([&]() -> int {
    if (argc != 4) return lockstep::kExitUsage;
    lockstep::init_process_group();
    try {
      train_for_ever(argv[1], std::stoi(argv[2]), std::stoi(argv[3]));
    } catch (const lockstep::Error& error) {
      std::printf("%s\n", error.name());
      throw;
    }
  });
}

}  // namespace pipeline_worker
