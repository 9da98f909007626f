// A C++ rank of a job that has Python ranks, too (python/tests/mixed_job.py): trains the network of
// that script, averages gradients as it does, and writes its parameters as raw float32.
//   mixed_job_worker DIGITS_CSV OUTPUT STEPS (all_reduce | ddp)
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "examples/data/digits_dataset.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/program/run_main.h"

namespace mixed_job_worker {
namespace {

constexpr std::int64_t kBatch = 32;

int train(const std::vector<std::string>& arguments) {
  const auto group = lockstep::init_process_group({.init_method = "torch://"});
  const auto dataset = examples::DigitsDataset::read(arguments.at(0));
  const at::Tensor images = dataset.images().flatten(1);
  torch::nn::Sequential net(torch::nn::Linear(64, 32), torch::nn::ReLU(),
                            torch::nn::Linear(32, 10));
  const bool by_ddp = arguments.at(3) == "ddp";
  // Rank 0's weights alone count.
  for (const at::Tensor& parameter : net->parameters()) {
    const at::Tensor index = at::arange(parameter.numel(), at::kFloat);
    parameter.detach().copy_(index.add(group.rank()).sin().mul(0.1).view(parameter.sizes()));
    if (!by_ddp) group.broadcast(parameter.detach(), 0);
  }
  std::optional<lockstep::DistributedDataParallel<torch::nn::SequentialImpl>> model;
  if (by_ddp) model.emplace(net, lockstep::DistributedDataParallelOptions{.process_group = group});
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const int steps = std::stoi(arguments.at(2));
  for (int step = 0; step < steps; ++step) {
    const std::int64_t first = (step * group.world_size() + group.rank()) * kBatch;
    const at::Tensor index = at::arange(first, first + kBatch).remainder(images.size(0));
    optimizer.zero_grad();
    const at::Tensor inputs = images.index_select(0, index);
    at::cross_entropy_loss(model ? model->forward(inputs) : net->forward(inputs),
                           dataset.labels().index_select(0, index))
        .backward();
    for (const at::Tensor& parameter : net->parameters()) {
      if (by_ddp) break;
      group.all_reduce(parameter.grad());
      parameter.grad().div_(group.world_size());
    }
    optimizer.step();
  }
  std::ofstream file(arguments.at(1), std::ios::binary);
  for (const at::Tensor& parameter : net->parameters()) {
    file.write(static_cast<const char*>(parameter.const_data_ptr()),
               static_cast<std::streamsize>(parameter.nbytes()));
  }
  return 0;
}

}  // namespace
}  // namespace mixed_job_worker

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return mixed_job_worker::train({argv + 1, argv + argc}); });
}
