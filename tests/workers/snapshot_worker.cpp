// The C++ side of tests/python/snapshot/snapshot_interop.py: trains, saves and loads what Python
// loads and saved.
#include <cstdio>
#include <memory>
#include <string>

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/internal/random_state.h"
#include "lockstep/snapshot/internal/small_net.h"
#include "lockstep/snapshot/safetensors.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/snapshot/state_dict.h"

namespace lockstep::snapshot_worker {
namespace {

using testing::SmallNet;

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& kind, SmallNet& net) {
  namespace optim = torch::optim;
  const std::vector<at::Tensor> parameters = net->parameters();
  if (kind == "SGD") {
    return std::make_unique<optim::SGD>(parameters,
                                        optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
  }
  if (kind == "Adam")
    return std::make_unique<optim::Adam>(parameters, optim::AdamOptions().amsgrad(true));
  if (kind == "AdamW") return std::make_unique<optim::AdamW>(parameters);
  if (kind == "RMSprop") {
    return std::make_unique<optim::RMSprop>(parameters,
                                            optim::RMSpropOptions().momentum(0.9).centered(true));
  }
  if (kind == "Adagrad") return std::make_unique<optim::Adagrad>(parameters);
  throw UsageError(concat("no optimizer '", kind, "'"));
}

/// The same steps in both languages: without dropout, on inputs that a formula gives. The norm uses
/// its running statistics, because behind a norm of the batch the gradient of `first.bias` is
/// rounding noise, which Adam would scale up.
void train_by_formula(SmallNet& net, torch::optim::Optimizer& optimizer, int steps) {
  net->eval();
  for (int step = 0; step < steps; ++step) {
    const at::Tensor input = (at::arange(24, at::kFloat) * (step + 1)).sin().reshape({6, 4});
    optimizer.zero_grad();
    (net->forward(input) - input.sum(1, true)).square().mean().backward();
    optimizer.step();
  }
}

/// Saves a snapshot after three steps, then the weights that three more steps lead to.
void write(const std::string& kind, const std::string& path) {
  at::manual_seed(1);
  SmallNet net;
  net->norm->running_mean.fill_(0.25);
  const auto optimizer = make_optimizer(kind, net);
  train_by_formula(net, *optimizer, 3);
  save_snapshot(path, {.model = state_dict(*net),
                       .optimizer = optimizer_state_dict(*optimizer),
                       .epoch = 2,
                       .step = 3,
                       .random_state = {random_state(at::kCPU)},
                       .extra = {{"bfloat16", at::ones({2}, at::kBFloat16)},
                                 {"transposed", at::arange(6).reshape({2, 3}).t()}}});
  train_by_formula(net, *optimizer, 3);
  save_snapshot(path + ".later", {.model = state_dict(*net)});
}

/// Takes over what Python saved, trains three steps more and saves the weights for Python.
void resume(const std::string& kind, const std::string& path) {
  SmallNet net;
  const auto optimizer = make_optimizer(kind, net);
  load_state_dict(*net, read_state_dict(path), path);
  const c10::IValue file = load(path);
  load_optimizer_state_dict(*optimizer, entry(file, "optimizer", path), path);
  train_by_formula(net, *optimizer, 3);
  save_snapshot(path + ".later", {.model = state_dict(*net)});
}

/// A directory with a sharded snapshot after three steps.
void write_sharded(const std::string& kind, const std::string& folder) {
  SmallNet net;
  const auto optimizer = make_optimizer(kind, net);
  train_by_formula(net, *optimizer, 3);
  SnapshotDirectory(folder, {.sharded_saves = true})
      .save(*net, *optimizer, {.epoch = 2, .step = 3});
}

/// One line a tensor: name, dtype, shape and the sum of the values.
void print(const std::string& path) {
  for (const auto& [name, tensor] : read_state_dict(path)) {
    const std::string line = concat(name, " ", tensor.dtype().name(), " ", tensor.sizes(), " ",
                                    tensor.to(at::kDouble).sum().item().toDouble());
    std::puts(line.c_str());
  }
}

int run(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "write" && argc == 4) {
    write(argv[2], argv[3]);
  } else if (command == "resume" && argc == 4) {
    resume(argv[2], argv[3]);
  } else if (command == "shard" && argc == 4) {
    write_sharded(argv[2], argv[3]);
  } else if (command == "print" && argc == 3) {
    print(argv[2]);
  } else if (command == "convert" && argc == 4) {
    save_safetensors(argv[3], read_state_dict(argv[2]), {{"format", "pt"}});
  } else if (command == "load" && argc == 3) {
    load_snapshot(argv[2]);
  } else {
    throw UsageError(
        "usage: snapshot_worker write|resume KIND FILE | shard KIND FOLDER | print|load FILE | "
        "convert FILE FILE");
  }
  return 0;
}

}  // namespace

int run_worker(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}

}  // namespace lockstep::snapshot_worker
