// One of the two programs that bench/training/run.py times in turns: a short training in C++. Rank
// 0 writes to --result, as JSON: when the first step was complete (seconds of the monotonic clock),
// the time of each further step and of an epoch through a loader, of the slowest rank, and the peak
// memory of the largest.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/version.h>

#include "bench/tasks/task.h"
#include "lockstep/amp/autocast.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/os/machine/affinity.h"
#include "lockstep/program/run_main.h"

namespace lockstep::bench::training {
namespace {

using Clock = std::chrono::steady_clock;
using Batch = torch::data::Example<>;

constexpr int kReplicas = 2;     // of DataParallel
constexpr int kWarmUpSteps = 3;  // buckets are rebuilt after the first
constexpr int kFewestSteps = 5;
constexpr double kSeconds = 1;  // of steps

struct Job {
  std::string task;
  std::string parallel = "ddp";
  std::string precision = "float32";
  std::int64_t samples = 1024;
  std::string result;
};

class Samples : public torch::data::datasets::Dataset<Samples> {
 public:
  explicit Samples(Batch all) : all_(std::move(all)) {}
  Batch get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {all_.data[i], all_.target[i]};
  }
  std::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(all_.data.size(0));
  }

 private:
  Batch all_;
};

using Forward = std::function<at::Tensor(const at::Tensor& inputs)>;

Forward make_forward(const Job& job, const ProcessGroup& group, torch::nn::Sequential model) {
  if (job.parallel == "none") {
    return [model](const at::Tensor& inputs) mutable { return model->forward(inputs); };
  }
  if (job.parallel == "dp") {
    const auto replicas = std::make_shared<DataParallel<torch::nn::SequentialImpl>>(
        model, DataParallelOptions{.device_ids = std::vector<c10::Device>(kReplicas, at::kCPU)});
    return [replicas](const at::Tensor& inputs) { return replicas->forward(inputs); };
  }
  const auto replica = std::make_shared<DistributedDataParallel<torch::nn::SequentialImpl>>(
      model, DistributedDataParallelOptions{.process_group = group});
  return [replica](const at::Tensor& inputs) { return replica->forward(inputs); };
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Task& task) {
  constexpr double kLearningRate = 1e-3;
  const std::vector<at::Tensor> parameters = task.model->parameters();
  if (task.with_adamw) return std::make_unique<torch::optim::AdamW>(parameters, kLearningRate);
  return std::make_unique<torch::optim::SGD>(parameters, kLearningRate);
}

class Training {
 public:
  Training(const Job& job, const ProcessGroup& group)
      : task_(make_task(job.task)),
        forward_(make_forward(job, group, task_.model)),
        optimizer_(make_optimizer(task_)),
        with_bfloat16_(job.precision == "bfloat16"),
        batch_size_(task_.batch_size * (job.parallel == "dp" ? kReplicas : 1)) {}

  void step(const Batch& batch) {
    optimizer_->zero_grad();
    at::Tensor loss;
    {
      const Autocast autocast({.enabled = with_bfloat16_});
      loss = task_.loss(forward_(batch.data), batch.target);
    }
    loss.backward();
    optimizer_->step();
  }

  Batch samples(std::int64_t count) const { return task_.samples(count); }
  std::int64_t batch_size() const { return batch_size_; }

 private:
  Task task_;
  Forward forward_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  bool with_bfloat16_;
  std::int64_t batch_size_;
};

void max_over_ranks(const ProcessGroup& group, std::vector<double>& values) {
  group.all_reduce(
      at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kDouble),
      {.op = ReduceOp::kMax});
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The same on all ranks: as many as fit the time, by the shortest of the steps before.
int count_steps(const ProcessGroup& group, const std::vector<double>& before) {
  std::vector<double> shortest = {*std::min_element(before.begin(), before.end())};
  max_over_ranks(group, shortest);
  return std::max(kFewestSteps, static_cast<int>(kSeconds / shortest[0]));
}

std::vector<double> time_steps(Training& training, const Batch& batch, int steps) {
  std::vector<double> times;
  for (int i = 0; i < steps; ++i) {
    const auto start = Clock::now();
    training.step(batch);
    times.push_back(seconds_since(start));
  }
  return times;
}

double time_epoch(Training& training, const ProcessGroup& group, std::int64_t samples) {
  const auto loader = torch::data::make_data_loader(
      Samples(training.samples(samples)).map(torch::data::transforms::Stack<>()),
      DistributedSampler(static_cast<std::size_t>(samples), {.process_group = group}),
      static_cast<std::size_t>(training.batch_size()));
  group.barrier();
  const auto start = Clock::now();
  for (const Batch& batch : *loader) training.step(batch);
  return seconds_since(start);
}

double peak_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmHWM:") continue;
    double kilobytes = 0;
    status >> kilobytes;
    return kilobytes;
  }
  throw Error("training: /proc/self/status has no VmHWM");
}

void use_processors(const Job& job, const ProcessGroup& group) {
  if (job.parallel == "dp") return at::set_num_threads(kReplicas);
  const std::vector<int> cpus = allowed_cpus();
  const auto rank = static_cast<std::size_t>(group.rank());
  if (static_cast<std::size_t>(group.world_size()) <= cpus.size()) pin_to_cpu(cpus[rank]);
  at::set_num_threads(1);
}

void run(const Job& job) {
  const ProcessGroup group = init_process_group();
  use_processors(job, group);
  Training training(job, group);
  const Batch batch = training.samples(training.batch_size());
  training.step(batch);
  const double first_step_at =
      std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  const std::vector<double> warm_up = time_steps(training, batch, kWarmUpSteps);
  const int count = count_steps(group, warm_up);

  group.barrier();
  std::vector<double> steps = time_steps(training, batch, count);
  max_over_ranks(group, steps);
  std::vector<double> others = {first_step_at, time_epoch(training, group, job.samples),
                                peak_kilobytes()};
  max_over_ranks(group, others);
  if (group.rank() != 0) return;
  std::ofstream file(job.result);
  file << nlohmann::json{{"steps_s", steps},
                         {"first_step_at_s", others[0]},
                         {"epoch_s", others[1]},
                         {"peak_kb", others[2]},
                         {"batch_size", training.batch_size() * group.world_size()},
                         {"libtorch", TORCH_VERSION}};
  if (!file.flush()) throw Error("training: cannot write " + job.result);
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_main([&] {
    Job job;
    CLI::App app("A short training that bench/training/run.py times.", "training");
    app.add_option("task", job.task, "toy, linear, mlp, resnet18 or mingpt")->required();
    app.add_option("--parallel", job.parallel)->check(CLI::IsMember({"ddp", "dp", "none"}));
    app.add_option("--precision", job.precision)->check(CLI::IsMember({"float32", "bfloat16"}));
    app.add_option("--samples", job.samples, "of an epoch")->check(CLI::Range(1, 1'000'000'000));
    app.add_option("--result", job.result, "the file to write")->required();
    CLI11_PARSE(app, argc, argv);
    run(job);
    return 0;
  });
}

}  // namespace lockstep::bench::training
