#pragma once

#include <filesystem>
#include <iostream>

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include "examples/ladder/arguments.h"
#include "examples/ladder/random_data.h"

/// Trains from the last snapshot on, if there is one.
class ResumingTrainer {
 public:
  /// `gpu` is what the lines that it prints call this process.
  ResumingTrainer(const Arguments& arguments, const lockstep::ProcessGroup& group, int gpu)
      : arguments_(arguments),
        group_(group),
        gpu_(gpu),
        model_(resumed_model(), {.process_group = group}),
        optimizer_(model_->parameters(), /*lr=*/1e-3),
        sampler_(RandomData::kSamples, {.process_group = group}),
        train_data_(prepare_loader(sampler_, arguments.batch_size)) {}

  void train() {
    if (epochs_run_ >= arguments_.total_epochs && group_.rank() == 0) {
      std::cout << "Training is complete: " << kSnapshot << " has " << epochs_run_
                << " epochs; delete it to start anew" << std::endl;
    }
    for (std::int64_t epoch = epochs_run_; epoch < arguments_.total_epochs; ++epoch) {
      run_epoch(epoch);
      if (group_.rank() == 0 && epoch % arguments_.save_every == 0) save_snapshot(epoch);
    }
  }

 private:
  static constexpr const char* kSnapshot = "snapshot.pt";

  // Rank 0 reads, so that one machine's file is enough: DistributedDataParallel gives all ranks its
  // parameters.
  torch::nn::Linear resumed_model() {
    torch::nn::Linear model(20, 1);
    auto epochs_run = torch::zeros({1}, torch::kLong);
    if (group_.rank() == 0 && std::filesystem::exists(kSnapshot)) {
      const auto snapshot = lockstep::load(kSnapshot);
      const auto state = lockstep::entry(snapshot, "MODEL_STATE", kSnapshot);
      lockstep::load_state_dict(*model, lockstep::tensor_dict(state, kSnapshot), kSnapshot);
      const auto count = lockstep::integer_entry(snapshot, "EPOCHS_RUN", kSnapshot);
      if (count < 0) {
        throw lockstep::UsageError(std::string(kSnapshot) + ": EPOCHS_RUN is " +
                                   std::to_string(count) + "; delete the file to start anew");
      }
      epochs_run[0] = count;
    }
    epochs_run = epochs_run.to(group_.device());
    group_.broadcast(epochs_run, 0);
    epochs_run_ = epochs_run.item<std::int64_t>();
    if (epochs_run_ > 0) {
      std::cout << "Resuming training from snapshot at Epoch " << epochs_run_ << std::endl;
    }
    model->to(group_.device());
    return model;
  }

  void save_snapshot(std::int64_t epoch) {
    auto snapshot = lockstep::make_dict();
    snapshot.insert("MODEL_STATE", lockstep::tensor_dict_value(lockstep::state_dict(*model_)));
    snapshot.insert("EPOCHS_RUN", epoch + 1);
    lockstep::save(kSnapshot, snapshot);  // whole or not at all, whenever the process is killed
    std::cout << "Epoch " << epoch << " | Training snapshot saved at " << kSnapshot << std::endl;
  }

  void run_batch(const torch::Tensor& source, const torch::Tensor& targets) {
    optimizer_.zero_grad();
    auto loss = torch::mse_loss(model_(source), targets);
    loss.backward();
    optimizer_.step();
  }

  void run_epoch(std::int64_t epoch) {
    std::cout << "[GPU" << gpu_ << "] Epoch " << epoch << " | Batchsize: " << arguments_.batch_size
              << " | Steps: " << steps_of(sampler_.size(), arguments_.batch_size) << std::endl;
    sampler_.set_epoch(epoch);
    for (auto& batch : *train_data_) {
      run_batch(batch.data.to(group_.device()), batch.target.to(group_.device()));
    }
  }

  Arguments arguments_;
  lockstep::ProcessGroup group_;
  int gpu_;
  std::int64_t epochs_run_ = 0;  // set by resumed_model()
  lockstep::DistributedDataParallel<torch::nn::LinearImpl> model_;
  torch::optim::SGD optimizer_;
  lockstep::DistributedSampler sampler_;
  Loader<lockstep::DistributedSampler> train_data_;
};
