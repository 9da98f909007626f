// Times steps of optimizers on the parameters of the MLP 1024-4096-1024-100, 8.5 million of
// float32, for bench/optimizers/run.py: reads "SUBJECT STEPS" lines, answers each with a JSON list
// of microseconds. Subjects: torch-adamw, lockstep-adamw, limit-adamw, and so for sgd, with
// momentum, and lion (not of torch), lamb, nadam, ….
#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "bench/memory_traffic.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/program/run_main.h"

namespace lockstep::bench::optimizer_steps {
namespace {

using Clock = std::chrono::steady_clock;
using Tensors = std::vector<at::Tensor>;
using Step = std::function<void()>;

Tensors make_parameters() {
  Tensors parameters;
  for (const auto& [outputs, inputs] : {std::pair{4096, 1024}, {1024, 4096}, {100, 1024}}) {
    for (const at::Tensor& parameter : {at::randn({outputs, inputs}), at::randn({outputs})}) {
      parameters.push_back(parameter.requires_grad_());
      parameters.back().mutable_grad() = at::randn_like(parameter.detach());
    }
  }
  return parameters;
}

template <class Optimizer, class Options>
std::function<Step()> steps_of(const Options& options) {
  return [options] {
    const auto optimizer = std::make_shared<Optimizer>(make_parameters(), options);
    return [optimizer] { optimizer->step(); };
  };
}

struct LimitBuffers {
  Tensors parameters = make_parameters();
  Tensors first, second;
};

template <int kStates>
void touch_all(const LimitBuffers& buffers) {
  for (std::size_t i = 0; i < buffers.parameters.size(); ++i) {
    const at::Tensor parameter = buffers.parameters[i].detach();
    float* const p = parameter.mutable_data_ptr<float>();
    const float* const g = buffers.parameters[i].grad().const_data_ptr<float>();
    float* const first = buffers.first[i].mutable_data_ptr<float>();
    float* const second = buffers.second[i].mutable_data_ptr<float>();
    at::parallel_for(0, parameter.numel(), 1 << 15, [&](std::int64_t begin, std::int64_t end) {
      if constexpr (kStates == 1) {
        touch(p + begin, g + begin, first + begin, end - begin);
      } else {
        touch(p + begin, g + begin, first + begin, second + begin, end - begin);
      }
    });
  }
}

template <int kStates>
std::function<Step()> limit() {
  return [] {
    const auto buffers = std::make_shared<LimitBuffers>();
    for (const at::Tensor& parameter : buffers->parameters) {
      buffers->first.push_back(at::zeros_like(parameter.detach()));
      buffers->second.push_back(at::zeros_like(parameter.detach()));
    }
    return [buffers] { touch_all<kStates>(*buffers); };
  };
}

const std::map<std::string, std::function<Step()>> kSubjects = {
    {"torch-adamw", steps_of<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3))},
    {"lockstep-adamw", steps_of<AdamW>(AdamWOptions{})},
    {"limit-adamw", limit<2>()},
    {"torch-sgd", steps_of<torch::optim::SGD>(torch::optim::SGDOptions(1e-3).momentum(0.9))},
    {"lockstep-sgd", steps_of<SGD>(SGDOptions{.momentum = 0.9})},
    {"limit-sgd", limit<1>()},
    {"lockstep-lion", steps_of<Lion>(LionOptions{})},
    {"limit-lion", limit<1>()},
    {"torch-adagrad", steps_of<torch::optim::Adagrad>(torch::optim::AdagradOptions(1e-3))},
    {"lockstep-adagrad", steps_of<Adagrad>(AdagradOptions{})},
    {"limit-adagrad", limit<1>()},
    {"torch-rmsprop", steps_of<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-3))},
    {"lockstep-rmsprop", steps_of<RMSprop>(RMSpropOptions{})},
    {"limit-rmsprop", limit<1>()},
    {"lockstep-nadam", steps_of<NAdam>(NAdamOptions{})},
    {"limit-nadam", limit<2>()},
    {"lockstep-radam", steps_of<RAdam>(RAdamOptions{})},
    {"limit-radam", limit<2>()},
    {"lockstep-adamax", steps_of<Adamax>(AdamaxOptions{})},
    {"limit-adamax", limit<2>()},
    {"lockstep-adadelta", steps_of<Adadelta>(AdadeltaOptions{})},
    {"limit-adadelta", limit<2>()},
    {"lockstep-lamb", steps_of<LAMB>(LAMBOptions{})},
    {"limit-lamb", limit<2>()},
};

int run(int argc, char** argv) {
  if (argc > 1) at::set_num_threads(std::stoi(argv[1]));
  std::map<std::string, Step> made;
  std::string subject;
  int steps = 0;
  while (std::cin >> subject >> steps) {
    const auto found = kSubjects.find(subject);
    if (found == kSubjects.end()) throw UsageError("no subject " + subject);
    made.clear();  // One at a time has memory.
    Step& step = made[subject] = found->second();
    for (int i = 0; i < 2; ++i) step();
    nlohmann::json times = nlohmann::json::array();
    for (int i = 0; i < steps; ++i) {
      const auto begin = Clock::now();
      step();
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
    std::cout << times << std::endl;
  }
  return 0;
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_main([&] { return run(argc, argv); });
}

}  // namespace lockstep::bench::optimizer_steps
