// A training with pauses that is preempted at any moment, by bench/recovery/preemption.py:
// preempted_worker resilient|plain STEPS FOLDER PAUSE_MS. Says what it does from now on, as
// "PID WHAT STEP NS", NS of CLOCK_MONOTONIC: starts; ready, signals end it no more; begins;
// waits, for data; evaluates; steps; done, a step; saves; saved, preempted; and at the end
// the bits of its state in place of a step: ends.
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/train/preemption.h"
#include "lockstep/train/resilient_training.h"

namespace lockstep::bench::preempted_worker {
namespace {

namespace nn = torch::nn;
using Model = DistributedDataParallel<nn::SequentialImpl>;

constexpr std::int64_t kWidth = 256;
constexpr std::int64_t kWaitEvery = 4;
constexpr std::int64_t kEvaluateEvery = 20;
constexpr int kSaveEvery = 10;
constexpr int kEvaluationBatches = 5;

struct Job {
  bool is_resilient = false;
  std::int64_t steps = 0;
  std::string folder;
  std::chrono::milliseconds pause{0};
};

void tell(const char* what, std::uint64_t step) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::string line = concat(::getpid(), " ", what, " ", step, " ",
                                  now.tv_sec * 1'000'000'000LL + now.tv_nsec, "\n");
  // One write of less than PIPE_BUF bytes is not mixed with those of other ranks.
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) throw Error("nobody reads the lines");
}

class Training {
 public:
  explicit Training(std::chrono::milliseconds pause)
      : net_(nn::Linear(8, kWidth), nn::ReLU(), nn::Linear(kWidth, kWidth), nn::ReLU(),
             nn::Linear(kWidth, 1)),
        optimizer_(net_->parameters(), torch::optim::AdamOptions(1e-3)),
        pause_(pause) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net_->parameters()) {
      parameter.copy_((at::arange(parameter.numel(), at::kFloat).view_as(parameter) + 1).sin() /
                      16);
    }
  }

  /// `is_over` is asked between batches. False when it was.
  template <typename IsOver>
  bool evaluate(Model& model, const ProcessGroup& group, std::int64_t step, IsOver is_over) const {
    if (step % kEvaluateEvery != kEvaluateEvery - 1) return true;
    tell("evaluates", step);
    const at::NoGradGuard no_grad;
    at::Tensor loss = at::zeros({1});
    for (int batch = 0; batch < kEvaluationBatches; ++batch) {
      if (is_over()) return false;
      loss += model.forward(inputs(batch)).square().mean();
      std::this_thread::sleep_for(pause_ / kEvaluationBatches);  // What a larger one would take.
    }
    group.all_reduce(loss);
    return true;
  }

  void step(Model& model, const ProcessGroup& group, std::int64_t step) {
    if (step % kWaitEvery == 0 && step / kWaitEvery % group.world_size() == group.rank()) {
      tell("waits", step);
      std::this_thread::sleep_for(pause_);  // A loader that is late.
    }
    tell("steps", step);
    const at::Tensor batch = inputs(step * group.world_size() + group.rank());
    optimizer_.zero_grad();
    (model.forward(batch) - batch.sum(1, true)).square().mean().backward();
    optimizer_.step();
    tell("done", step);
    if ((step + 1) % kSaveEvery == 0) tell("saves", step);
  }

  // FNV-1a.
  std::uint64_t bits() const {
    std::uint64_t sum = 0xcbf29ce484222325U;
    for (const at::Tensor& parameter : net_->parameters()) {
      const auto* const bytes = static_cast<const unsigned char*>(parameter.const_data_ptr());
      for (const unsigned char byte : std::span(bytes, parameter.nbytes())) {
        sum = (sum ^ byte) * 0x100000001b3U;
      }
    }
    return sum;
  }

  nn::Sequential net() const { return net_; }
  torch::optim::Optimizer& optimizer() { return optimizer_; }

 private:
  static at::Tensor inputs(std::int64_t batch) {
    return (at::arange(64, at::kFloat) * static_cast<double>(batch + 1)).sin().view({8, 8});
  }

  nn::Sequential net_;
  torch::optim::Adam optimizer_;
  std::chrono::milliseconds pause_;
};

int told_to_make_room(std::int64_t steps) {
  tell("saved", steps);
  return kExitPreempted;
}

int run_resilient(const Job& job, Training& training) {
  ResilientTraining loop({.model = training.net().ptr(), .optimizer = &training.optimizer()},
                         {.directory = job.folder, .save_interval = kSaveEvery});
  tell("ready", 0);
  const TrainingEnd end = loop.run(job.steps, [&](const ProcessGroup& group) {
    const auto model = std::make_shared<Model>(training.net().ptr());
    tell("begins", loop.steps_done());
    return [&training, model, group](std::int64_t step) {
      training.evaluate(*model, group, step, [] { return false; });
      training.step(*model, group, step);
    };
  });
  return end == TrainingEnd::kPreempted ? told_to_make_room(loop.steps_done()) : 0;
}

int run_plain(const Job& job, Training& training) {
  const ProcessGroup group = init_process_group();
  Preemption preemption;
  tell("ready", 0);
  Model model(training.net().ptr());
  SnapshotDirectory snapshots(job.folder);
  const auto save = [&](std::int64_t steps) {
    if (steps > 0) snapshots.save(*model, training.optimizer(), {.step = steps - 1});
  };
  const auto resumed = snapshots.load_latest(*model, training.optimizer());
  const std::int64_t first = resumed ? resumed->step + 1 : 0;
  tell("begins", first);
  for (std::int64_t step = first; step < job.steps; ++step) {
    const auto is_over = [&] { return preemption.requested(); };
    if (is_over() || !training.evaluate(model, group, step, is_over)) {
      save(step);
      return told_to_make_room(step);
    }
    training.step(model, group, step);
    if ((step + 1) % kSaveEvery == 0) save(step + 1);
  }
  return 0;
}

int run(const Job& job) {
  at::set_num_threads(1);
  tell("starts", 0);
  Training training(job.pause);
  const int code = job.is_resilient ? run_resilient(job, training) : run_plain(job, training);
  if (code == 0) tell("ends", training.bits());
  return code;
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_main([&] {
    const auto steps = argc == 5 ? parse_number<std::int64_t>(argv[2]) : std::nullopt;
    const auto pause = argc == 5 ? parse_number<int>(argv[4]) : std::nullopt;
    if (!steps || !pause) {
      throw UsageError("preempted_worker: run it by bench/recovery/preemption.py");
    }
    return run({.is_resilient = std::string(argv[1]) == "resilient",
                .steps = *steps,
                .folder = argv[3],
                .pause = std::chrono::milliseconds(*pause)});
  });
}

}  // namespace lockstep::bench::preempted_worker
