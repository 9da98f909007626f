#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include "examples/data/cifar_dataset.h"

/// What the CIFAR programs have in common: arguments, data, scores, and how processes start.
namespace cifar {

struct Arguments {
  std::string ip = "127.0.0.1";  ///< of the first machine
  int port = 29500;
  int nnodes = 1;
  int node_rank = 0;
  int nproc_per_node = 0;         ///< at first the number of CUDA devices, or 2
  std::int64_t batch_size = 128;  ///< of all processes together
  int grad_accu_steps = 1;        ///< parts that each process takes its batch in
  std::int64_t epochs = 2;
  double lr = 0.1;
  std::string data = "data/photos32";
  std::int64_t synthetic = 0;  ///< so many images made up, instead of `data`
  bool no_sync_bn = false;
  std::string amp_dtype = "bf16";
};

/// What tells the programs apart; each has only the options that it heeds.
struct Program {
  enum class Processes { kOne, kItsOwn, kItsOwnOrTheLaunchers };

  std::string description;
  Processes processes = Processes::kItsOwnOrTheLaunchers;
  int grad_accu_steps = 1;  ///< the default
  bool has_amp_dtype = false;
};

/// Reads the command line. False: it has shown its help. Errors: UsageError, also for what a
/// launcher has decided already.
bool parse(const Program& program, int argc, char** argv, Arguments& arguments);

using Body = std::function<void(const lockstep::ProcessGroup&)>;

/// Runs `body` in nproc_per_node processes that this program starts, on each machine.
void spawn_processes(const Arguments& arguments, const Body& body);
/// The same in those that a launcher has started, if one has.
void run_in_processes(const Arguments& arguments, const Body& body);

examples::Cifar100Dataset read_data(const Arguments& arguments, examples::CifarPart part);

/// Images of a process in one part of a step. Errors: UsageError where they cannot be equal.
std::int64_t divide_batch(std::int64_t batch_size, int processes, int parts);

/// This rank's batches, each sample of the data set on one rank.
inline auto make_loader(const examples::Cifar100Dataset& data, lockstep::DistributedSampler sampler,
                        std::int64_t batch_size) {
  return torch::data::make_data_loader(data, std::move(sampler),
                                       static_cast<std::size_t>(batch_size));
}

/// Loss and accuracy over samples that are counted once each.
class Score {
 public:
  void add(const torch::Tensor& loss, const torch::Tensor& logits, const torch::Tensor& labels);
  /// Over all ranks.
  void all_reduce(const lockstep::ProcessGroup& group);
  double loss() const { return loss_ / total_; }
  double accuracy() const { return 100 * correct_ / total_; }

 private:
  double loss_ = 0;
  double correct_ = 0;
  double total_ = 0;
};

/// Prints a line an epoch, and the time per epoch in the end, on rank 0, and shows how far an epoch
/// is on the standard error.
class Report {
 public:
  /// `samples`: of this rank in an epoch. `step_samples`: in a step.
  Report(const Arguments& arguments, int rank, std::int64_t samples, std::int64_t step_samples);
  void step() { bar_.step_done(); }
  void epoch(std::int64_t epoch, const Score& train, const Score& test);
  void end() const;

 private:
  using Clock = std::chrono::steady_clock;
  const Arguments& arguments_;
  int rank_;
  lockstep::ProgressBar bar_;
  Clock::time_point epoch_begin_ = Clock::now();
  double seconds_ = 0;
};

/// The model's score on the test images. `model` is called with images and gives logits.
template <class Model>
Score evaluate(Model& model, const examples::Cifar100Dataset& data,
               const lockstep::ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  Score score;
  const lockstep::DistributedSampler sampler(
      *data.size(), {.process_group = group, .shuffle = false, .padding = false});
  const auto loader = make_loader(data, sampler, /*batch_size=*/256);
  model.eval();
  for (auto& batch : *loader) {
    const auto labels = batch.target.to(group.device());
    const auto logits = model.forward(batch.data.to(group.device()));
    score.add(torch::cross_entropy_loss(logits, labels), logits, labels);
  }
  model.train();
  score.all_reduce(group);
  return score;
}

}  // namespace cifar
