// The C++ side of tests/python/parity/optim_parity.py: clips gradients and averages weights, which come
// from formulas, and writes what came out of it for torch.load.
//   optim_worker clip|average FILE
#include <cmath>
#include <limits>
#include <string>

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/exponential_moving_average.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/snapshot.h"

namespace lockstep::optim_worker {
namespace {

at::Tensor formula(at::IntArrayRef sizes, double phase) {
  return (at::arange(c10::multiply_integers(sizes), at::kFloat) * 0.7 + phase).sin().view(sizes);
}

const std::vector<std::vector<std::int64_t>> kShapes = {{3, 5}, {1}, {0}, {1009}, {257, 130}};

std::vector<at::Tensor> parameters_with_gradients(at::ScalarType dtype) {
  std::vector<at::Tensor> parameters;
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    at::Tensor parameter = at::zeros(kShapes[i], dtype).requires_grad_();
    parameter.mutable_grad() = formula(kShapes[i], static_cast<double>(i)).to(dtype);
    parameters.push_back(parameter);
  }
  return parameters;
}

void add_gradients(TensorDict& results, const std::string& name,
                   const std::vector<at::Tensor>& parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    results.emplace_back(concat(name, ".", i), parameters[i].grad());
  }
}

/// Every order of norm but that of the largest element, which an empty gradient has not in Python.
TensorDict clip() {
  TensorDict results;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const double norm_type : {0.0, 0.5, 1.0, 2.0, 3.0}) {
      for (const double max_norm : {0.1, 0.7, 1e6}) {
        const auto parameters = parameters_with_gradients(dtype);
        const double norm = clip_grad_norm_(parameters, max_norm, {.norm_type = norm_type});
        const std::string name =
            concat(c10::toString(dtype), ".", norm_type * 10, ".", max_norm * 10);
        results.emplace_back(name + ".norm", at::scalar_tensor(norm, at::kDouble));
        add_gradients(results, name, parameters);
      }
    }
    const auto parameters = parameters_with_gradients(dtype);
    clip_grad_value_(parameters, 0.3);
    add_gradients(results, concat(c10::toString(dtype), ".value"), parameters);
    const auto known = parameters_with_gradients(dtype);
    clip_grads_with_norm_(known, 0.9, 7.3);
    add_gradients(results, concat(c10::toString(dtype), ".known"), known);
  }
  return results;
}

struct WeightsImpl : torch::nn::Module {
  WeightsImpl() {
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      register_parameter(concat("p", i), at::zeros(kShapes[i]));
    }
    register_parameter("low", at::zeros({7}, at::kBFloat16));
    register_buffer("mean", at::zeros({11}));
    register_buffer("count", at::zeros({}, at::kLong));
  }
  void set(int step) {
    const at::NoGradGuard no_grad;
    double phase = 10 * step;
    for (at::Tensor& tensor : parameters()) tensor.copy_(formula(tensor.sizes(), phase++));
    named_buffers()["mean"].copy_(formula({11}, phase));
    named_buffers()["count"].fill_(3 * step);
  }
};

TensorDict average() {
  TensorDict results;
  for (const bool use_buffers : {false, true}) {
    for (const double decay : {0.0, 0.3, 0.9, 0.999, 1.0}) {
      WeightsImpl weights;
      ExponentialMovingAverage average(weights, {.decay = decay, .use_buffers = use_buffers});
      for (int step = 1; step <= 5; ++step) {
        weights.set(step);
        average.update();
      }
      for (const auto& [name, tensor] : average.state_dict()) {
        results.emplace_back(concat(use_buffers, ".", decay * 1000, ".", name), tensor);
      }
    }
  }
  return results;
}

/// Five steps of a sharded optimizer, in as many ranks as were started; rank 0 writes.
template <class Optimizer, class Options>
void shard(const Options& options, const std::string& path) {
  const ProcessGroup group = init_process_group();
  const auto parameters = parameters_with_gradients(at::kFloat);
  ShardedOptimizer<Optimizer> optimizer(parameters, options);
  for (int step = 0; step < 5; ++step) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = formula(kShapes[i], static_cast<double>(i) + 10 * step);
    }
    optimizer.step();
  }
  Snapshot snapshot{.optimizer = optimizer.consolidated_state_dict()};
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    snapshot.extra.emplace_back(concat("p", i), parameters[i].detach());
  }
  if (group.rank() == 0) save_snapshot(path, snapshot);
}

int run(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  const std::string path = argc > 2 ? argv[2] : "";
  if (command == "clip") {
    save_snapshot(path, {.extra = clip()});
  } else if (command == "average") {
    save_snapshot(path, {.extra = average()});
  } else if (command == "sgd") {
    shard<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3), path);
  } else if (command == "adamw") {
    shard<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01), path);
  } else {
    throw UsageError("usage: optim_worker clip|average|sgd|adamw FILE");
  }
  return 0;
}

}  // namespace

int run_worker(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}

}  // namespace lockstep::optim_worker
