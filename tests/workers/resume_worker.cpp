// Trains, is killed, goes on with another number of ranks, again and again; each run is some forks
// of this process, which has no threads (tests/python/recovery/resume.py).
//   resume_worker FOLDER KILLS SEED
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <sys/wait.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/program/run_main.h"
#include "lockstep/train/accelerator.h"

namespace resume_worker {
namespace {

constexpr std::int64_t kSamples = 97;
constexpr int kMostRanks = 4;
constexpr int kMostBatches = 12;  // of a run until it is killed, about
constexpr unsigned kMostSeconds = 240;

struct Rows : torch::data::datasets::Dataset<Rows, torch::data::Example<>> {
  torch::data::Example<> get(std::size_t index) override {
    const at::Tensor input = (at::arange(3) * 0.7 + static_cast<double>(index)).sin();
    return {input, input.sum(0, true)};
  }
  std::optional<std::size_t> size() const override { return kSamples; }
};

struct Run {
  std::string folder;
  int number = 0;
  int world_size = 1;
  /// Epochs in all; 0: until it is killed; less: to the end of the epoch.
  std::int64_t epochs = 0;
  int progress = -1;  ///< Gets a byte a batch.
};

int train(const Run& run, int rank) {
  lockstep::Accelerator accelerator(
      {.split_batches = true,
       .seed = 7,
       .directory = run.folder + "/snapshots",
       .sample_log_directory = run.folder + "/data",
       .init = {.init_method = lockstep::concat("file://", run.folder, "/meet.", run.number),
                .rank = rank,
                .world_size = run.world_size}});
  torch::nn::Linear net(3, 1);
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) parameter.fill_(0.25);
  }
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(2e-4).momentum(0.5));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  auto loader = accelerator.make_data_loader(Rows().map(torch::data::transforms::Stack<>()),
                                             {.batch_size = 6});
  accelerator.load_state();
  const std::int64_t end = run.epochs < 0 ? loader.epoch() + 1 : run.epochs;
  std::mt19937 random(static_cast<unsigned>(run.number));  // The same on all ranks.
  while (run.epochs == 0 || loader.epoch() < end) {
    for (auto& batch : loader) {
      optimizer.zero_grad();
      accelerator.backward(at::mse_loss(model(batch.data), batch.target));
      optimizer.step();
      if (random() % 3 == 0) accelerator.save_state();
      if (::write(run.progress, ".", 1) < 0) return 1;
    }
  }
  accelerator.save_state();
  accelerator.print(loader.epoch(),
                    " epochs: ", net->weight.sum().item<double>() + net->bias.sum().item<double>());
  return 0;
}

// Whether all ended well, which a run that is killed does not.
bool run_ranks(Run run, int batches_to_live) {
  int ends[2];
  if (::pipe(ends) != 0) throw lockstep::Error("pipe");
  run.progress = ends[1];
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < run.world_size; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(ends[0]);
      std::exit(lockstep::run_main([&] { return train(run, rank); }));
    }
    ranks.push_back(pid);
  }
  ::close(ends[1]);
  char byte = 0;
  for (int seen = 0; seen != batches_to_live * run.world_size; ++seen) {
    if (::read(ends[0], &byte, 1) != 1) break;  // All have ended.
  }
  if (batches_to_live >= 0) {
    for (const pid_t rank : ranks) ::kill(rank, SIGKILL);
  }
  bool good = true;
  for (const pid_t rank : ranks) {
    int status = 0;
    ::waitpid(rank, &status, 0);
    // Or it has seen another's end before its own.
    good = good && (batches_to_live >= 0) == (status != 0);
  }
  ::close(ends[0]);
  return good;
}

int run(const std::string& folder, int kills, unsigned seed) {
  ::alarm(kMostSeconds);
  std::mt19937 random(seed);
  for (int number = 1; number <= kills; ++number) {
    const Run killed{.folder = folder,
                     .number = number,
                     .world_size = static_cast<int>(1 + random() % kMostRanks)};
    if (!run_ranks(killed, static_cast<int>(random() % kMostBatches))) {
      throw lockstep::Error(lockstep::concat("run ", number, " ended by itself"));
    }
  }
  if (!run_ranks({.folder = folder, .number = kills + 1, .world_size = 3, .epochs = -1}, -1)) {
    throw lockstep::Error("the last run failed");
  }
  return 0;
}

}  // namespace

int run_worker(int argc, char** argv) {
  return lockstep::run_main([&] {
    if (argc == 4)
      return run(argv[1], std::stoi(argv[2]), static_cast<unsigned>(std::stoi(argv[3])));
    // Undisturbed, by one rank.
    if (argc == 3) {
      const bool good =
          run_ranks({.folder = argv[1], .number = 1, .epochs = std::stoi(argv[2])}, -1);
      return good ? 0 : 1;
    }
    throw lockstep::UsageError("resume_worker FOLDER KILLS SEED | resume_worker FOLDER EPOCHS");
  });
}

}  // namespace resume_worker
