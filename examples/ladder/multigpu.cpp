// The ladder, second step: DistributedDataParallel, one process a device, which the program starts
// itself.
//
//   multigpu 50 10
//
// Against single_gpu.cpp: a process group, the model wrapped, a sampler that gives each process its
// part of the data, and only rank 0 saves. multigpu_torchrun.cpp is the next step.
#include <iostream>

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include "examples/ladder/arguments.h"
#include "examples/ladder/random_data.h"

namespace {

class Trainer {
 public:
  Trainer(const Arguments& arguments, const lockstep::ProcessGroup& group)
      : arguments_(arguments),
        group_(group),
        model_(model_on(group.device()), {.process_group = group}),
        optimizer_(model_->parameters(), /*lr=*/1e-3),
        sampler_(RandomData::kSamples, {.process_group = group}),
        train_data_(prepare_loader(sampler_, arguments.batch_size)) {}

  void train() {
    for (std::int64_t epoch = 0; epoch < arguments_.total_epochs; ++epoch) {
      run_epoch(epoch);
      if (group_.rank() == 0 && epoch % arguments_.save_every == 0) save_checkpoint(epoch);
    }
  }

 private:
  static torch::nn::Linear model_on(torch::Device device) {
    torch::nn::Linear model(20, 1);
    model->to(device);
    return model;
  }

  void run_batch(const torch::Tensor& source, const torch::Tensor& targets) {
    optimizer_.zero_grad();
    auto loss = torch::mse_loss(model_(source), targets);
    loss.backward();  // averages the gradients of all processes
    optimizer_.step();
  }

  void run_epoch(std::int64_t epoch) {
    std::cout << "[GPU" << group_.rank() << "] Epoch " << epoch
              << " | Batchsize: " << arguments_.batch_size
              << " | Steps: " << steps_of(sampler_.size(), arguments_.batch_size) << std::endl;
    sampler_.set_epoch(epoch);
    for (auto& batch : *train_data_) {
      run_batch(batch.data.to(group_.device()), batch.target.to(group_.device()));
    }
  }

  void save_checkpoint(std::int64_t epoch) {
    lockstep::save("checkpoint.pt", lockstep::state_dict(*model_));
    std::cout << "Epoch " << epoch << " | Training checkpoint saved at checkpoint.pt" << std::endl;
  }

  Arguments arguments_;
  lockstep::ProcessGroup group_;
  lockstep::DistributedDataParallel<torch::nn::LinearImpl> model_;
  torch::optim::SGD optimizer_;
  lockstep::DistributedSampler sampler_;
  Loader<lockstep::DistributedSampler> train_data_;
};

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    CLI::App app(
        "Trains a linear layer on random data, in processes of its own:\n  multigpu 50 10");
    Arguments arguments;
    add_arguments(app, arguments);
    int world_size = default_replicas();
    app.add_option("--world_size,--world-size", world_size,
                   "processes (default: one for each CUDA device, 2 without)")
        ->check(integer_between(1, kMostProcesses));
    if (!parse_command_line(app, argc, argv)) return 0;
    refuse_launcher("multigpu_torchrun");
    torch::manual_seed(0);  // the same weights in every run
    // From here on in every process, with the number of its rank.
    lockstep::spawn([&](int) { Trainer(arguments, lockstep::init_process_group()).train(); },
                    world_size);
    return 0;
  });
}
