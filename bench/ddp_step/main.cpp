// One of the two programs that bench/ddp_step/run.py times in turns: training steps in C++.
//
//   lockstep run --standalone --nproc-per-node=2 ddp_step COMMANDS ANSWERS
//
// Rank 0 reads commands from the first of two named pipes, a line each, and answers each by a line
// of JSON into the second: "distance" gives the processors' round trip in ns; "MODEL EXCHANGE
// STEPS" makes so many training steps and gives the time of each, of the slowest rank, in µs.
#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <nlohmann/json.hpp>
#include <torch/optim/sgd.h>

#include "bench/ddp_step/exchange.h"
#include "bench/tasks/task.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/os/machine/affinity.h"
#include "lockstep/os/machine/core_distance.h"
#include "lockstep/program/run_main.h"

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLearningRate = 1e-3;

class Training {
 public:
  Training(const std::string& model, const std::string& exchange, const ProcessGroup& control)
      : task_(make_task(model)),
        forward_(make_exchange(exchange, control, task_)),
        batch_(task_.samples(task_.batch_size)),
        parameters_(task_.model->parameters()),
        optimizer_(parameters_, kLearningRate) {
    for (int i = 0; i < kWarmUpSteps; ++i) step();
  }

  void step() {
    // Optimizer::zero_grad detaches gradients first, which views of c10d's buckets do not allow.
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
    task_.loss(forward_(batch_.data), batch_.target).backward();
    optimizer_.step();
  }

 private:
  static constexpr int kWarmUpSteps = 3;  // buckets are rebuilt after the first
  Task task_;
  Forward forward_;
  torch::data::Example<> batch_;
  std::vector<at::Tensor> parameters_;
  torch::optim::SGD optimizer_;
};

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

std::vector<double> time_steps(const ProcessGroup& control, Training& training, int steps) {
  std::vector<double> times;
  control.barrier();
  training.step();
  for (int i = 0; i < steps; ++i) {
    const auto start = Clock::now();
    training.step();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  control.all_reduce(at::from_blob(times.data(), {steps}, at::kDouble), {.op = ReduceOp::kMax});
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
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Training>> trainings;
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
    } else {
      std::istringstream words(line);
      std::string model;
      std::string exchange;
      int steps = 0;
      words >> model >> exchange >> steps;
      if (steps < 1) throw UsageError("ddp_step: not a command: " + line);
      auto& training = trainings[{model, exchange}];
      if (!training) training = std::make_unique<Training>(model, exchange, control);
      answer = {{"us", time_steps(control, *training, steps)}};
    }
    if (rank == 0) output << answer.dump() << std::endl;
  }
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    if (argc != 3) throw lockstep::UsageError("ddp_step: run it by bench/ddp_step/run.py");
    return lockstep::bench::serve(argv[1], argv[2]);
  });
}
