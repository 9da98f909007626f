// Shows how DataParallel divides batches: 100 samples in batches of 30, over the CUDA devices or
// over as many replicas as asked for.
//
//   dp_sizes --replicas 8
#include <iostream>
#include <mutex>

#include <CLI/CLI.hpp>
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include "examples/command_line.h"

namespace {

constexpr std::int64_t kInputSize = 5;
constexpr std::int64_t kOutputSize = 2;
constexpr std::int64_t kBatchSize = 30;
constexpr std::int64_t kDataSize = 100;

std::string text_of(c10::IntArrayRef sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "torch.Size([" + text + "])";
}

// Replicas run in threads: a line at a time.
void print(const std::string& line) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::cout << line << std::endl;
}

struct ModelImpl : torch::nn::Cloneable<ModelImpl> {
  void reset() override { fc = register_module("fc", torch::nn::Linear(kInputSize, kOutputSize)); }
  ModelImpl() { reset(); }
  torch::Tensor forward(const torch::Tensor& input) {
    auto output = fc(input);
    print("\tIn Model: input size " + text_of(input.sizes()) + " output size " +
          text_of(output.sizes()));
    return output;
  }
  torch::nn::Linear fc = nullptr;
};
TORCH_MODULE(Model);

// One for each replica; with fewer CUDA devices than replicas, the CPU for all.
std::vector<c10::Device> devices(int replicas) {
  std::vector<c10::Device> devices;
  const bool has_cuda = replicas <= static_cast<int>(torch::cuda::device_count());
  for (int i = 0; i < replicas; ++i) {
    devices.push_back(has_cuda ? c10::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(i))
                               : c10::Device(torch::kCPU));
  }
  return devices;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    CLI::App app(
        "Shows how DataParallel divides batches of 30, 30, 30 and 10 samples:\n"
        "  dp_sizes --replicas 8");
    int replicas = default_replicas();
    app.add_option("--replicas", replicas, "how many (default: the CUDA devices, 2 without)")
        ->check(integer_between(1, kMostProcesses));
    if (!parse_command_line(app, argc, argv)) return 0;

    Model net;
    const auto replica_devices = devices(replicas);
    net->to(replica_devices[0]);
    if (replicas > 1) print("Let's use " + std::to_string(replicas) + " replicas!");
    lockstep::DataParallel model(net, {.device_ids = replica_devices});
    const auto data = torch::randn({kDataSize, kInputSize}).to(replica_devices[0]);
    for (const auto& input : data.split(kBatchSize)) {
      const auto output = model(input);
      print("Outside: input size " + text_of(input.sizes()) + " output_size " +
            text_of(output.sizes()));
    }
    return 0;
  });
}
