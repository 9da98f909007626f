// One of the two programs that bench/ddp_step/run.py times in turns: training steps in C++.
//
//   lockstep run --standalone --nproc-per-node=2 ddp_step COMMANDS ANSWERS
//
// Rank 0 reads commands from the first of two named pipes, a line each, and answers each by a line
// of JSON into the second: "distance" gives the processors' round trip in ns; "MODEL EXCHANGE
// OPTIMIZER STEPS" makes so many training steps and gives the time of each, of the slowest rank, in
// µs, and of its optimizer alone ("step_us"); "memory" the memory of each rank, in MB. Optimizers:
// none, sgd and adamw (LibTorch's), lockstep-sgd, lockstep-adamw; limit: the memory traffic of
// AdamW on one copy, on tensors of its own.
#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <nlohmann/json.hpp>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "bench/ddp_step/exchange.h"
#include "bench/ddp_step/update_limit.h"
#include "bench/tasks/task.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/os/machine/affinity.h"
#include "lockstep/os/machine/core_distance.h"
#include "lockstep/program/run_main.h"

namespace lockstep::bench::ddp_step {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLearningRate = 1e-3;

std::function<void()> make_update(const std::string& name, const ProcessGroup& control,
                                  const std::vector<at::Tensor>& parameters) {
  const auto step_of = [](auto optimizer) {
    return [optimizer = std::move(optimizer)] { optimizer->step(); };
  };
  if (name == "none") return [] {};
  if (name == "limit") return make_update_limit(control, parameters);
  if (name == "sgd") {
    return step_of(std::make_shared<torch::optim::SGD>(parameters, kLearningRate));
  }
  if (name == "adamw") {
    return step_of(std::make_shared<torch::optim::AdamW>(parameters, kLearningRate));
  }
  if (name == "lockstep-sgd") return step_of(std::make_shared<SGD>(parameters, kLearningRate));
  if (name == "lockstep-adamw") return step_of(std::make_shared<AdamW>(parameters, kLearningRate));
  throw UsageError(concat("ddp_step: there is no optimizer '", name, "'"));
}

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

class Training {
 public:
  Training(const std::string& model, const std::string& exchange, const std::string& optimizer,
           const ProcessGroup& control)
      : task_(make_task(model)),
        exchange_(make_exchange(exchange, control, task_)),
        batch_(task_.samples(task_.batch_size)),
        update_(make_update(optimizer, control, exchange_.parameters)) {
    for (int i = 0; i < kWarmUpSteps; ++i) step();
  }

  /// Returns how long the optimizer took, in µs.
  double step() {
    // Optimizer::zero_grad detaches gradients first, which views of c10d's buckets do not allow.
    for (at::Tensor& parameter : exchange_.parameters) parameter.mutable_grad().reset();
    task_.loss(exchange_.forward(batch_.data), batch_.target).backward();
    const auto start = Clock::now();
    update_();
    return microseconds_since(start);
  }

 private:
  static constexpr int kWarmUpSteps = 3;  // buckets are rebuilt after the first
  Task task_;
  Exchange exchange_;
  torch::data::Example<> batch_;
  std::function<void()> update_;
};

// Of this process: its proportional share of what it shares.
double memory_mb() {
  std::ifstream lines("/proc/self/smaps_rollup");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("Pss:")) return std::stod(line.substr(4)) / 1024;
  }
  return 0;
}

// A line that rank 0 has read, on every rank; empty at the end.
std::string share_line(const ProcessGroup& control, std::istream& lines) {
  std::array<char, 256> text{};
  if (control.rank() == 0) {
    std::string line;
    std::getline(lines, line);
    if (line.size() >= text.size()) throw UsageError("ddp_step: a command is too long: " + line);
    std::memcpy(text.data(), line.data(), line.size());
  }
  control.broadcast(at::from_blob(text.data(), {static_cast<std::int64_t>(text.size())}, at::kByte),
                    0);
  return text.data();
}

struct StepTimes {
  std::vector<double> us;       ///< Of whole steps.
  std::vector<double> step_us;  ///< Of the optimizer alone.
};

StepTimes time_steps(const ProcessGroup& control, Training& training, int steps) {
  StepTimes times;
  control.barrier();
  training.step();
  for (int i = 0; i < steps; ++i) {
    const auto start = Clock::now();
    times.step_us.push_back(training.step());
    times.us.push_back(microseconds_since(start));
  }
  for (std::vector<double>* const of_all : {&times.us, &times.step_us}) {
    control.all_reduce(at::from_blob(of_all->data(), {steps}, at::kDouble), {.op = ReduceOp::kMax});
  }
  return times;
}

int serve(const std::string& commands, const std::string& answers) {
  const std::vector<int> cpus = allowed_cpus();
  const ProcessGroup control = init_process_group({.backend = "gloo"});
  const auto rank = static_cast<std::size_t>(control.rank());
  if (static_cast<std::size_t>(control.world_size()) <= cpus.size()) pin_to_cpu(cpus[rank]);
  at::set_num_threads(1);

  std::ifstream input;
  std::ofstream output;
  if (rank == 0) {
    input.open(commands);
    output.open(answers);
    if (!input || !output) throw UsageError("ddp_step: cannot open the pipes " + commands);
  }
  std::map<std::array<std::string, 3>, std::unique_ptr<Training>> trainings;
  for (;;) {
    const std::string line = share_line(control, input);
    if (line.empty()) return 0;
    nlohmann::json answer;
    if (line == "distance") {
      // The other rank waits for the next command meanwhile.
      if (rank == 0 && cpus.size() > 1) {
        const CoreDistance distance = measure_core_distance(cpus[0], cpus[1]);
        answer = {{"round_trip_ns", distance.round_trip_ns},
                  {"placement", placement_name(distance.placement)}};
      } else {
        answer = {{"round_trip_ns", 0}, {"placement", "unknown"}};
      }
    } else if (line == "memory") {
      std::vector<double> of_ranks(static_cast<std::size_t>(control.world_size()));
      of_ranks[rank] = memory_mb();
      control.all_reduce(at::from_blob(of_ranks.data(), {control.world_size()}, at::kDouble));
      answer = {{"mb", of_ranks}};
    } else {
      std::istringstream words(line);
      std::string model;
      std::string exchange;
      std::string optimizer;
      int steps = 0;
      words >> model >> exchange >> optimizer >> steps;
      if (steps < 1) throw UsageError("ddp_step: not a command: " + line);
      auto& training = trainings[{model, exchange, optimizer}];
      if (!training) training = std::make_unique<Training>(model, exchange, optimizer, control);
      const StepTimes times = time_steps(control, *training, steps);
      answer = {{"us", times.us}, {"step_us", times.step_us}};
    }
    if (rank == 0) output << answer.dump() << std::endl;
  }
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_main([&] {
    if (argc != 3) throw UsageError("ddp_step: run it by bench/ddp_step/run.py");
    return serve(argv[1], argv[2]);
  });
}

}  // namespace lockstep::bench::ddp_step
