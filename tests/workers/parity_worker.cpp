// The Lockstep side of the parity test (tests/python/parity/ddp_parity.py): trains the network of that
// script on the same samples and writes every loss and the final state as raw float32.
//   parity_worker DIGITS_CSV INITIAL_STATE OUTPUT_FOLDER BATCH_SIZE STEPS NORM(0|1) BFLOAT16(0|1)
//                 AMP(0|1)
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "examples/data/digits_dataset.h"
#include "lockstep/amp/autocast.h"
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/program/run_main.h"

namespace parity_worker {
namespace {

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool with_norm) : norm_on(with_norm) {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    hidden = register_module("hidden", torch::nn::Linear(8 * 8 * 8, 32));
    output = register_module("output", torch::nn::Linear(32, 10));
    if (!with_norm) {
      for (at::Tensor& parameter : norm->parameters()) parameter.set_requires_grad(false);
    }
  }
  at::Tensor forward(at::Tensor x) {
    x = conv(x);
    if (norm_on) x = norm(x);
    return output(at::relu(hidden(at::relu(x).flatten(1))));
  }
  bool norm_on;
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear hidden{nullptr};
  torch::nn::Linear output{nullptr};
};
TORCH_MODULE(Net);

// Parameters, then floating-point buffers, each in order of registration.
std::vector<at::Tensor> state_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> state = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) {
    if (buffer.is_floating_point()) state.push_back(buffer);
  }
  return state;
}

void read_state(torch::nn::Module& module, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  for (const at::Tensor& tensor : state_of(module)) {
    const at::Tensor values = at::empty(tensor.sizes(), at::kFloat);
    file.read(static_cast<char*>(values.data_ptr()), static_cast<std::streamsize>(values.nbytes()));
    if (!file) throw lockstep::UsageError("cannot read " + path);
    tensor.detach().copy_(values);
  }
}

void write_floats(std::ofstream& file, const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().contiguous();
  file.write(static_cast<const char*>(values.const_data_ptr()),
             static_cast<std::streamsize>(values.nbytes()));
}

// The steps in which one rank's loss overflows.
bool overflows(int step) {
  return step == 5 || step == 6 || step == 40;
}

int train(const std::vector<std::string>& arguments) {
  const std::string output = arguments.at(2);
  const auto batch_size = std::stoul(arguments.at(3));
  const int steps = std::stoi(arguments.at(4));
  const auto group = lockstep::init_process_group();
  const auto dataset = examples::DigitsDataset::read(arguments.at(0));

  Net net(arguments.at(5) == "1");
  // Rank 0's state alone is the right one: the others must get it from the wrapper.
  if (group.rank() == 0) read_state(*net, arguments.at(1));
  lockstep::DistributedDataParallelOptions options{.process_group = group};
  if (arguments.at(6) == "1") options.exchange_dtype = at::kBFloat16;
  const bool mixed = arguments.at(7) == "1";
  lockstep::DistributedDataParallel model(net, options);
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  lockstep::DistributedSampler sampler(*dataset.size(), {.process_group = group, .seed = 5});

  lockstep::GradScaler scaler({.init_scale = 1024, .growth_interval = 7, .enabled = mixed});

  std::ofstream scales(output + "/scales." + std::to_string(group.rank()), std::ios::binary);
  std::ofstream losses(output + "/losses." + std::to_string(group.rank()), std::ios::binary);
  for (int epoch = 0, step = 0; step < steps; ++epoch) {
    sampler.set_epoch(epoch);
    sampler.reset();
    for (auto batch = sampler.next(batch_size); batch && step < steps; ++step) {
      const std::vector<std::int64_t> chosen(batch->begin(), batch->end());
      const at::Tensor index = at::tensor(chosen);
      optimizer.zero_grad();
      at::Tensor loss;
      {
        const lockstep::Autocast autocast({.enabled = mixed});
        loss = at::cross_entropy_loss(model(dataset.images().index_select(0, index)),
                                      dataset.labels().index_select(0, index));
      }
      write_floats(losses, loss);
      if (mixed && group.rank() == 1 && overflows(step)) {
        loss = loss * std::numeric_limits<double>::infinity();
      }
      scaler.scale(loss).backward();
      scaler.step(optimizer);
      scaler.update();
      write_floats(scales, at::full({}, scaler.get_scale()));
      batch = sampler.next(batch_size);
    }
  }
  std::ofstream state(output + "/state." + std::to_string(group.rank()), std::ios::binary);
  for (const at::Tensor& tensor : state_of(*net)) write_floats(state, tensor);
  return 0;
}

}  // namespace

int run_worker(int argc, char** argv) {
  return lockstep::run_main([&] { return train({argv + 1, argv + argc}); });
}

}  // namespace parity_worker
