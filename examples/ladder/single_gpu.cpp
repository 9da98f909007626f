// The ladder, first step: one process, one device.
//
//   single_gpu 50 10
//
// The next step is multigpu.cpp.
#include <iostream>

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include "examples/ladder/arguments.h"
#include "examples/ladder/random_data.h"

namespace {

class Trainer {
 public:
  Trainer(torch::nn::Linear model, const Arguments& arguments, torch::Device device)
      : model_(std::move(model)),
        optimizer_(model_->parameters(), /*lr=*/1e-3),
        loader_(torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
            RandomData().map(torch::data::transforms::Stack<>()), arguments.batch_size)),
        arguments_(arguments),
        device_(device) {
    model_->to(device_);
  }

  void train() {
    for (std::int64_t epoch = 0; epoch < arguments_.total_epochs; ++epoch) {
      run_epoch(epoch);
      if (epoch % arguments_.save_every == 0) save_checkpoint(epoch);
    }
  }

 private:
  void run_batch(const torch::Tensor& source, const torch::Tensor& targets) {
    optimizer_.zero_grad();
    auto loss = torch::mse_loss(model_(source), targets);
    loss.backward();
    optimizer_.step();
  }

  void run_epoch(std::int64_t epoch) {
    const auto batch_size = arguments_.batch_size;
    const auto steps = (RandomData::kSamples + batch_size - 1) / batch_size;
    std::cout << "[GPU0] Epoch " << epoch << " | Batchsize: " << batch_size
              << " | Steps: " << steps << std::endl;
    for (auto& batch : *loader_) run_batch(batch.data.to(device_), batch.target.to(device_));
  }

  void save_checkpoint(std::int64_t epoch) {
    lockstep::write_pickle_archive("checkpoint.pt", lockstep::tensor_dict_value(lockstep::state_dict(*model_)));
    std::cout << "Epoch " << epoch << " | Training checkpoint saved at checkpoint.pt" << std::endl;
  }

  torch::nn::Linear model_;
  torch::optim::SGD optimizer_;
  decltype(torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      RandomData().map(torch::data::transforms::Stack<>()), 1)) loader_;
  Arguments arguments_;
  torch::Device device_;
};

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    CLI::App app("Trains a linear layer on random data, on one device.");
    Arguments arguments;
    add_arguments(app, arguments);
    if (!parse(app, argc, argv)) return 0;
    const auto device = torch::cuda::is_available() ? torch::Device(torch::kCUDA, 0) : torch::kCPU;
    Trainer(torch::nn::Linear(20, 1), arguments, device).train();
    return 0;
  });
}
