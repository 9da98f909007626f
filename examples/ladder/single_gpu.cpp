// The ladder, first step: one process, one device.
//
//   single_gpu 50 10
//
// multigpu.cpp is the next step.
#include <iostream>

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include "examples/ladder/arguments.h"
#include "examples/ladder/random_data.h"

namespace {

class Trainer {
 public:
  Trainer(const Arguments& arguments, torch::Device device)
      : arguments_(arguments),
        device_(device),
        model_(20, 1),
        optimizer_(model_->parameters(), /*lr=*/1e-3),
        train_data_(prepare_loader(torch::data::samplers::RandomSampler(RandomData::kSamples),
                                   arguments.batch_size)) {
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
    std::cout << "[GPU0] Epoch " << epoch << " | Batchsize: " << arguments_.batch_size
              << " | Steps: " << steps_of(RandomData::kSamples, arguments_.batch_size) << std::endl;
    for (auto& batch : *train_data_) run_batch(batch.data.to(device_), batch.target.to(device_));
  }

  void save_checkpoint(std::int64_t epoch) {
    lockstep::save("checkpoint.pt", lockstep::state_dict(*model_));
    std::cout << "Epoch " << epoch << " | Training checkpoint saved at checkpoint.pt" << std::endl;
  }

  Arguments arguments_;
  torch::Device device_;
  torch::nn::Linear model_;
  torch::optim::SGD optimizer_;
  Loader<torch::data::samplers::RandomSampler> train_data_;
};

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    CLI::App app("Trains a linear layer on random data, on one device:\n  single_gpu 50 10");
    Arguments arguments;
    add_arguments(app, arguments);
    if (!parse_command_line(app, argc, argv)) return 0;
    torch::manual_seed(0);  // the same weights in every run
    Trainer(arguments, torch::cuda::is_available() ? torch::kCUDA : torch::kCPU).train();
    return 0;
  });
}
