// DistributedDataParallel on a toy model, in the four ways of its tutorial:
//
//   toy_ddp basic
//   toy_ddp checkpoint --world_size 4
//   toy_ddp model_parallel
//   lockstep run --standalone --nproc-per-node=2 toy_ddp elastic
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>

#include <CLI/CLI.hpp>
#include <lockstep/lockstep.h>
#include <torch/torch.h>
#include <unistd.h>

#include "examples/command_line.h"

namespace {

constexpr std::int64_t kBatchSize = 20;

struct ToyModelImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return net2(torch::relu(net1(x))); }
  torch::nn::Linear net1 = register_module("net1", torch::nn::Linear(10, 10));
  torch::nn::Linear net2 = register_module("net2", torch::nn::Linear(10, 5));
};
TORCH_MODULE(ToyModel);

// Its halves lie on two devices.
struct ToyMpModelImpl : torch::nn::Module {
  ToyMpModelImpl(torch::Device first, torch::Device second) : dev0(first), dev1(second) {
    net1->to(dev0);
    net2->to(dev1);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return net2(torch::relu(net1(x.to(dev0))).to(dev1));
  }
  torch::Device dev0;
  torch::Device dev1;
  torch::nn::Linear net1 = register_module("net1", torch::nn::Linear(10, 10));
  torch::nn::Linear net2 = register_module("net2", torch::nn::Linear(10, 5));
};
TORCH_MODULE(ToyMpModel);

void say(const std::string& line) {
  std::cout << line + "\n" << std::flush;
}

template <class Model>
void train_one_step(Model& model, torch::Device input_device, torch::Device output_device) {
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.001);
  const auto outputs = model(torch::randn({kBatchSize, 10}).to(input_device));
  const auto labels = torch::randn({kBatchSize, 5}).to(output_device);
  torch::mse_loss(outputs, labels).backward();
  optimizer.step();
}

void demo_basic(const lockstep::ProcessGroup& group) {
  ToyModel net;
  net->to(group.device());
  lockstep::DistributedDataParallel model(net, {.process_group = group});
  train_one_step(model, group.device(), group.device());
}

void demo_checkpoint(const lockstep::ProcessGroup& group) {
  ToyModel net;
  net->to(group.device());
  lockstep::DistributedDataParallel model(net, {.process_group = group});
  // A file that all ranks know and no other job has.
  auto number = torch::tensor({static_cast<std::int64_t>(::getpid())}).to(group.device());
  group.broadcast(number, 0);
  const auto path = std::filesystem::temp_directory_path() /
                    ("model." + std::to_string(number.item<std::int64_t>()) + ".checkpoint");
  // All ranks have the same parameters, so one saves and all load.
  if (group.rank() == 0) lockstep::save(path, lockstep::state_dict(*model));
  group.barrier();  // Not before it is saved; load_state_dict brings it to each rank's device.
  lockstep::load_state_dict(*model, lockstep::read_state_dict(path));
  train_one_step(model, group.device(), group.device());
  group.barrier();  // Not before all have loaded it.
  if (group.rank() == 0) std::filesystem::remove(path);
}

void demo_model_parallel(const lockstep::ProcessGroup& group) {
  // Two devices a rank where there are as many; else the CPU, twice.
  const auto device = [&](int half) {
    const int index = 2 * group.rank() + half;
    return 2 * group.world_size() <= static_cast<int>(torch::cuda::device_count())
               ? torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(index))
               : torch::Device(torch::kCPU);
  };
  lockstep::DistributedDataParallel model(ToyMpModel(device(0), device(1)),
                                          {.process_group = group});
  train_one_step(model, device(0), device(1));
}

const std::map<std::string, std::function<void(const lockstep::ProcessGroup&)>> kDemos = {
    {"basic", demo_basic},
    {"checkpoint", demo_checkpoint},
    {"model_parallel", demo_model_parallel},
    {"elastic", demo_basic},
};

void run_demo(const std::string& name) {
  const auto group = lockstep::init_process_group();
  const std::string example = name + " DDP example on rank " + std::to_string(group.rank()) + ".";
  say("Running " + example);
  kDemos.at(name)(group);
  say("Finished running " + example);
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    CLI::App app(
        "DistributedDataParallel on a toy model:\n  toy_ddp basic\n"
        "  lockstep run --standalone --nproc-per-node=2 toy_ddp elastic");
    std::string demo;
    int world_size = 2;
    app.add_option("demo", demo, "basic, checkpoint, model_parallel, or elastic, for a launcher")
        ->required()
        ->check(CLI::IsMember(kDemos));
    auto* processes = app.add_option("--world_size,--world-size", world_size,
                                     "processes to start, unless elastic");
    processes->capture_default_str()->check(integer_between(1, kMostProcesses));
    if (!parse_command_line(app, argc, argv)) return 0;
    if (demo == "elastic") {
      if (processes->count() > 0) {
        throw lockstep::UsageError(
            "--world_size is for processes that this program starts itself; elastic is started by "
            "a launcher: give it to the launcher");
      }
      run_demo(demo);
    } else {
      refuse_launcher("toy_ddp elastic");
      lockstep::spawn([&](int) { run_demo(demo); }, world_size);
    }
    return 0;
  });
}
