// Trains on handwritten digits without a loop of its own: what is trained is the task, how long and
// how is the trainer's.
//
//   trainer --devices=2                                          starts two processes itself
//   trainer --config=train.toml --lr=0.01                        options of a file, and other ones
//   lockstep run --standalone --nproc-per-node=2 trainer         the same by the launcher
//
// Started again it goes on after its last snapshot, on the same or another number of processes.
#include <iostream>
#include <memory>
#include <string>

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include "examples/data/digits_dataset.h"

namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(64, 128));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(128, 10));
  torch::Tensor forward(const torch::Tensor& images) {
    return output(torch::relu(hidden(images.flatten(1))));
  }
};

struct Digits : lockstep::Task<NetImpl> {
  explicit Digits(double lr) : lr_(lr) {}

  std::shared_ptr<NetImpl> configure_model() override { return std::make_shared<NetImpl>(); }

  std::unique_ptr<torch::optim::Optimizer> configure_optimizer(NetImpl& net) override {
    return std::make_unique<torch::optim::Adam>(net.parameters(), lr_);
  }

  torch::Tensor training_step(Model& model, Batch& batch, lockstep::StepContext&) override {
    return torch::cross_entropy_loss(model(batch.data), batch.target);
  }

  void validation_step(Model& model, Batch& batch, lockstep::StepContext& step) override {
    const auto output = model(batch.data);
    step.log("val_loss", torch::cross_entropy_loss(output, batch.target));
    step.log("val_accuracy", output.argmax(1).eq(batch.target).to(torch::kFloat).mean());
  }

 private:
  double lr_;
};

int run(int argc, char** argv) {
  lockstep::TrainerOptions options{.directory = "runs/trainer"};
  std::string data = "examples/data/digits.csv";
  double lr = 1e-3;
  int patience = 5;
  lockstep::ProgramOptions program("Trains a classifier of handwritten digits with a Trainer.");
  program.add("lr", lr, "learning rate");
  program.add("patience", patience, "early stopping: validations without a lower val_loss");
  program.add("data", data, "CSV file of digits: 64 pixels and a label per line");
  lockstep::add_trainer_options(program, options);
  if (!program.parse(argc, argv)) return 0;

  const auto digits = examples::DigitsDataset::read(data).split();
  const auto batches = [](examples::DigitsDataset set) {
    return set.map(torch::data::transforms::Stack<>());
  };
  Digits task(lr);
  lockstep::Trainer trainer(options);
  trainer.add(lockstep::LearningRateMonitor());
  trainer.add(
      lockstep::ModelCheckpoint({.monitor = "val_accuracy", .mode = lockstep::MonitorMode::kMax}));
  trainer.add(lockstep::EarlyStopping({.monitor = "val_loss", .patience = patience}));
  const auto result = trainer.fit(task, batches(digits.train), batches(digits.test));
  if (result.end == lockstep::FitEnd::kPreempted) return lockstep::kExitPreempted;
  if (trainer.is_global_zero()) {
    if (!result.reason.empty()) std::cout << "stopped: " << result.reason << "\n";
    std::cout << "trained for " << result.time.epochs << " epochs, " << result.time.batches
              << " steps; " << options.directory << "/best has the best weights" << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
