// What a step of a small model costs more than the same loop without exchange:
//
//   lockstep run --standalone --nproc-per-node=2 small_steps
//
// A step is zero_grad, forward, backward and SGD. The loops take turns, a block of steps each, so
// that all see the same machine; a step counts as long as on the rank where it lasts longest, and
// the figure is the median. "barrier-shm" exchanges nothing: its ranks wait for each other once a
// step. To profile a loop, name it alone: --exchanges=lockstep-shm.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/optim/sgd.h>

#include "bench/ddp_step/exchange.h"
#include "bench/tasks/task.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/os/machine/affinity.h"
#include "lockstep/os/machine/core_distance.h"
#include "lockstep/program/run_main.h"

namespace lockstep::bench::small_steps {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::vector<std::string> models = {"linear", "toy"};
  std::vector<std::string> exchanges = {"none", "barrier-shm", "lockstep-shm"};
  int blocks = 100;
  int steps = 50;
  bool as_json = false;
};

class Training {
 public:
  Training(const std::string& model, const std::string& exchange, const ProcessGroup& control)
      : task_(make_task(model)),
        exchange_(make_exchange(exchange, control, task_)),
        batch_(task_.samples(task_.batch_size)),
        optimizer_(exchange_.parameters, kLearningRate) {
    for (int i = 0; i < kWarmUpSteps; ++i) step();
  }

  void step() {
    optimizer_.zero_grad();
    task_.loss(exchange_.forward(batch_.data), batch_.target).backward();
    optimizer_.step();
  }

  // The first step of a block brings the ranks together and is not timed.
  void time_block(int steps) {
    step();
    auto begin = Clock::now();
    for (int i = 0; i < steps; ++i) {
      step();
      const auto end = Clock::now();
      times_us_.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
      begin = end;
    }
  }

  double median_us(const ProcessGroup& control) {
    control.all_reduce(
        at::from_blob(times_us_.data(), {static_cast<std::int64_t>(times_us_.size())}, at::kDouble),
        {.op = ReduceOp::kMax});
    const auto middle = times_us_.begin() + static_cast<std::ptrdiff_t>(times_us_.size() / 2);
    std::nth_element(times_us_.begin(), middle, times_us_.end());
    return *middle;
  }

 private:
  static constexpr double kLearningRate = 1e-3;
  static constexpr int kWarmUpSteps = 3;
  Task task_;
  Exchange exchange_;
  torch::data::Example<> batch_;
  torch::optim::SGD optimizer_;
  std::vector<double> times_us_;
};

std::string placement_now(const ProcessGroup& control, const std::vector<int>& cpus) {
  std::string name = "unknown";
  if (control.rank() == 0 && cpus.size() > 1) {
    name = placement_name(measure_core_distance(cpus[0], cpus[1]).placement);
  }
  control.barrier();
  return name;
}

void measure(const Options& options, const std::string& model, const ProcessGroup& control,
             const std::vector<int>& cpus) {
  std::vector<std::unique_ptr<Training>> trainings;
  for (const std::string& exchange : options.exchanges) {
    trainings.push_back(std::make_unique<Training>(model, exchange, control));
  }
  const std::string before = placement_now(control, cpus);
  for (int block = 0; block < options.blocks; ++block) {
    for (const auto& training : trainings) training->time_block(options.steps);
  }
  const std::string after = placement_now(control, cpus);
  const std::string placement = before == after ? before : "mixed";
  double none = 0;
  for (std::size_t i = 0; i < trainings.size(); ++i) {
    const double us = trainings[i]->median_us(control);
    if (options.exchanges[i] == "none") none = us;
    if (control.rank() != 0) continue;
    if (options.as_json) {
      const nlohmann::json row = {{"model", model},
                                  {"ranks", control.world_size()},
                                  {"exchange", options.exchanges[i]},
                                  {"placement", placement},
                                  {"us", us},
                                  {"added_us", us - none}};
      std::printf("%s\n", row.dump().c_str());
    } else {
      std::printf("%-8s %d ranks  %-14s %-8s %8.2f us", model.c_str(), control.world_size(),
                  options.exchanges[i].c_str(), placement.c_str(), us);
      std::printf(none > 0 ? "  added %6.2f us\n" : "\n", us - none);
    }
  }
}

int run(const Options& options) {
  const std::vector<int> cpus = allowed_cpus();
  const ProcessGroup control = init_process_group({.backend = "gloo"});
  const auto rank = static_cast<std::size_t>(control.rank());
  if (static_cast<std::size_t>(control.world_size()) <= cpus.size()) pin_to_cpu(cpus[rank]);
  at::set_num_threads(1);
  for (const std::string& model : options.models) measure(options, model, control, cpus);
  return 0;
}

}  // namespace

int run_program(int argc, char** argv) {
  Options options;
  CLI::App app("Times steps of small models with and without exchange");
  app.add_option("--models", options.models)->delimiter(',');
  app.add_option("--exchanges", options.exchanges, "of ddp_step; the first is compared with")
      ->delimiter(',');
  app.add_option("--blocks", options.blocks, "of each loop")->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "of a block")->check(CLI::PositiveNumber);
  app.add_flag("--json", options.as_json, "print a line of JSON for each loop");
  CLI11_PARSE(app, argc, argv);
  return run_main([&] { return run(options); });
}

}  // namespace lockstep::bench::small_steps
