// Trains a convolutional network on handwritten digits, in as many processes as it is started with:
//
//   lockstep run --standalone --nproc-per-node=2 digits
//
// A snapshot is written after each epoch; started again, the training goes on after the last one.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <string>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>
#include <torch/optim/adam.h>

#include "examples/data/digits_dataset.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/program/program_options.h"
#include "lockstep/program/progress_bar.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "models/convnet.h"

namespace {

using Model = lockstep::DistributedDataParallel<models::ConvNetImpl>;
using Clock = std::chrono::steady_clock;

struct Arguments {
  std::int64_t epochs = 20;
  int batch_size = 32;
  double lr = 1e-3;
  unsigned seed = 0;
  std::string data = "examples/data/digits.csv";
  std::string directory = "runs/digits";
  bool no_progress = false;
};

struct Score {
  std::int64_t correct;
  std::int64_t total;
  double percent() const {
    return 100.0 * static_cast<double>(correct) / static_cast<double>(total);
  }
};

auto load(const examples::DigitsDataset& digits, lockstep::DistributedSampler sampler,
          int batch_size) {
  auto batches = examples::DigitsDataset(digits).map(torch::data::transforms::Stack<>());
  return torch::data::make_data_loader(std::move(batches), std::move(sampler),
                                       torch::data::DataLoaderOptions(batch_size));
}

// The accuracy over all ranks. Each sample is counted once: without padding some ranks have one
// fewer, so nothing in the loop may wait for the others, and the module is called directly.
Score evaluate(Model& model, const examples::DigitsDataset& digits,
               const lockstep::ProcessGroup& group) {
  constexpr int kBatchSize = 256;
  const at::NoGradGuard no_grad;
  lockstep::DistributedSampler sampler(
      *digits.size(), {.process_group = group, .shuffle = false, .padding = false});
  at::Tensor counts = at::zeros({2}, at::TensorOptions(at::kLong).device(group.device()));
  const auto loader = load(digits, sampler, kBatchSize);
  model->eval();
  for (auto& batch : *loader) {
    const at::Tensor predicted = model->forward(batch.data.to(group.device())).argmax(1);
    counts[0] += predicted.eq(batch.target.to(group.device())).sum();
    counts[1] += batch.target.numel();
  }
  model->train();
  group.all_reduce(counts);
  return {counts[0].item<std::int64_t>(), counts[1].item<std::int64_t>()};
}

std::string summary(std::int64_t epoch, const Arguments& arguments, double loss, const Score& score,
                    double seconds) {
  const auto width = static_cast<int>(std::to_string(arguments.epochs).size());
  char text[128];
  std::snprintf(text, sizeof text, "epoch %*lld/%lld  loss %.4f  test accuracy %.2f %%  %.2f s",
                width, static_cast<long long>(epoch + 1), static_cast<long long>(arguments.epochs),
                loss, score.percent(), seconds);
  return text;
}

void say_what_next(const Arguments& arguments, const Score& score, bool was_complete,
                   double seconds) {
  const std::string& folder = arguments.directory;
  if (was_complete) {
    std::cout << "Training is complete: " << folder << " has all " << arguments.epochs
              << " epochs.\n";
  }
  std::cout << std::fixed << std::setprecision(2) << "Test accuracy: " << score.percent() << " % ("
            << score.correct << " of " << score.total << " digits)";
  if (!was_complete) std::cout << ", trained in " << seconds << " s";
  std::cout << "\n\nWhat next:\n"
            << "  train on     the same command with --epochs " << 2 * arguments.epochs << "\n"
            << "  start over   rm -r " << folder << "\n"
            << "  in Python    torch.load(\"" << folder
            << "/….pt\", weights_only=True)[\"model\"]\n"
            << "  your own     examples/digits.cpp is the whole program\n";
}

int train(const Arguments& arguments) {
  const auto group = lockstep::init_process_group();
  // The same samples are held out in every run, whatever the seed: a resumed run must not be tested
  // on what it has learned.
  const auto [train_set, test_set] = examples::DigitsDataset::read(arguments.data).split();

  at::manual_seed(arguments.seed);
  models::ConvNet net;
  net->to(group.device());
  Model model(net, {.process_group = group});
  torch::optim::Adam optimizer(model.parameters(), arguments.lr);
  lockstep::DistributedSampler sampler(*train_set.size(),
                                       {.process_group = group, .seed = arguments.seed});
  const auto loader = load(train_set, sampler, arguments.batch_size);

  lockstep::SnapshotDirectory snapshots(arguments.directory, {.process_group = group});
  const auto resumed = snapshots.load_latest(*model, optimizer);
  const std::int64_t first_epoch = resumed ? resumed->epoch + 1 : 0;
  const auto steps = static_cast<std::int64_t>((sampler.size() + arguments.batch_size - 1) /
                                               static_cast<std::size_t>(arguments.batch_size));
  lockstep::ProgressBar bar({.epochs = arguments.epochs,
                             .steps_per_epoch = steps,
                             .first_epoch = first_epoch,
                             .rank = group.rank(),
                             .enabled = !arguments.no_progress});
  if (resumed && first_epoch < arguments.epochs) {
    bar.print("resumed from " + resumed->path.string());
  }

  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto start = Clock::now();
  for (std::int64_t epoch = first_epoch; epoch < arguments.epochs; ++epoch) {
    const auto epoch_start = Clock::now();
    sampler.set_epoch(epoch);
    at::Tensor epoch_loss = at::zeros({1}, group.device());
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      const at::Tensor loss = at::cross_entropy_loss(model(batch.data.to(group.device())),
                                                     batch.target.to(group.device()));
      loss.backward();  // leaves the gradients averaged over the ranks
      optimizer.step();
      epoch_loss += loss.detach() / steps;
      bar.step_done(loss.item<double>());
    }
    snapshots.save(*model, optimizer, {.epoch = epoch, .step = (epoch + 1) * steps});
    group.all_reduce(epoch_loss, {.op = lockstep::ReduceOp::kAvg});
    bar.epoch_done(summary(epoch, arguments, epoch_loss.item<double>(),
                           evaluate(model, test_set, group), seconds_since(epoch_start)));
  }
  const double seconds = seconds_since(start);
  const Score score = evaluate(model, test_set, group);
  if (group.rank() == 0) {
    say_what_next(arguments, score, first_epoch >= arguments.epochs, seconds);
  }
  return 0;
}

int run(int argc, char** argv) {
  Arguments arguments;
  lockstep::ProgramOptions program(
      "Trains a convolutional network on handwritten digits.\n"
      "Start it with `lockstep run --standalone --nproc-per-node=2 digits`, or alone. It writes a\n"
      "snapshot after each epoch. Started again, it resumes from the newest snapshot.",
      {.environment_prefix = "DIGITS_"});
  program.add("epochs", arguments.epochs, "epochs in total, including those before a resume",
              {.least = 1, .most = 1'000'000'000});
  program.add("batch_size", arguments.batch_size, "samples per step on each rank",
              {.least = 1, .most = 1'000'000});
  program.add("lr", arguments.lr, "learning rate of Adam",
              lockstep::NumberRange<double>::positive());
  program.add("seed", arguments.seed,
              "seed of the initial weights and the order of samples; the same seed and number of "
              "ranks give the same bits");
  program.add("data", arguments.data, "CSV file of digits: 64 pixels and a label per line");
  program.add("directory", arguments.directory, "directory of the snapshots");
  program.add("no_progress", arguments.no_progress, "one line per epoch, no progress bar");
  return program.parse(argc, argv) ? train(arguments) : 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
