// A rank of a resilient program that a seed makes up (drawn_training.h):
//   recovery_worker SEED RANKS FOLDER [RANKS: 0 where their number changes]
// Each line begins with the pid. "starts", "rank R of W begins at S" in each generation, "enters
// PHASE" (new_group, construction, evaluation), "made S" once a step is made on this rank, "passed
// PHASE: ..." failpoints (passed_places.h), "ends with HASH" of parameters, buffers, optimizer and
// counters. FOLDER: where snapshots go.
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/nn/convert_sync_batchnorm.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/state_dict.h"
#include "lockstep/train/resilient_training.h"
#include "tests/fuzz/recovery/drawn_training.h"
#include "tests/fuzz/recovery/passed_places.h"

namespace lockstep::testing {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t kInputs = 6;
// 300 KiB of float32: above the size at which a gradient is exchanged by itself.
constexpr std::int64_t kLargeWidth = 277;

void say(const std::string& text) {
  std::puts(concat(::getpid(), " ", text).c_str());
  std::fflush(stdout);
}

struct NetImpl : nn::Module {
  explicit NetImpl(const DrawnTraining& drawn) : drawn_(drawn) {
    first = register_module("first", nn::Linear(kInputs, drawn.width));
    if (drawn.has_batch_norm) {
      norm = register_module("norm", nn::BatchNorm1d(drawn.width));
    }
    if (drawn.has_large_layer) {
      widen = register_module("widen", nn::Linear(drawn.width, kLargeWidth));
      large = register_module("large", nn::Linear(kLargeWidth, kLargeWidth));
      narrow = register_module("narrow", nn::Linear(kLargeWidth, drawn.width));
    }
    dropout = register_module("dropout", nn::Dropout(0.3));
    last = register_module("last", nn::Linear(drawn.width, 1));
  }

  at::Tensor forward(const at::Tensor& inputs) {
    at::Tensor y = first(inputs);
    if (drawn_.has_batch_norm) y = norm(y);
    y = at::tanh(y);
    if (drawn_.has_large_layer) y = at::tanh(narrow(large(at::tanh(widen(y)))));
    if (drawn_.has_dropout) y = dropout(y);
    return last(y);
  }

  const DrawnTraining drawn_;
  nn::Linear first{nullptr};
  nn::BatchNorm1d norm{nullptr};
  nn::Linear widen{nullptr};
  nn::Linear large{nullptr};
  nn::Linear narrow{nullptr};
  nn::Dropout dropout{nullptr};
  nn::Linear last{nullptr};
};
TORCH_MODULE(Net);

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const DrawnTraining& drawn,
                                                        std::vector<at::Tensor> parameters) {
  using Kind = DrawnTraining::Optimizer;
  switch (drawn.optimizer) {
    case Kind::kSgd:
      return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05));
    case Kind::kMomentum:
      return std::make_unique<torch::optim::SGD>(parameters,
                                                 torch::optim::SGDOptions(0.05).momentum(0.9));
    case Kind::kAdam:
      return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.01));
    case Kind::kAdamW:
      return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
  }
  throw UsageError("recovery_worker: no such optimizer");
}

// Which samples a rank has in a pass follows from step, pass and rank alone.
at::Tensor inputs_of(const DrawnTraining& drawn, std::int64_t step, int pass, int rank) {
  const std::int64_t samples = drawn.is_ragged ? 2 + (step + pass + 3 * rank) % 4 : 4;
  const std::int64_t number = pass + drawn.accumulation_steps * step;
  const std::int64_t first = 1 + (drawn.is_elastic() ? number : rank + drawn.world_size * number);
  return (at::arange(samples * kInputs, at::kFloat) * static_cast<double>(first))
      .sin()
      .view({samples, kInputs});
}

at::Tensor loss_of(const at::Tensor& outputs, const at::Tensor& inputs) {
  return (outputs - inputs.sum(1, true)).square().mean();
}

// FNV-1a over the bytes of all tensors in a value.
class Hash {
 public:
  void add(const c10::IValue& value) {
    if (value.isTensor()) {
      const at::Tensor dense = value.toTensor().contiguous();
      const auto* const bytes = static_cast<const unsigned char*>(dense.const_data_ptr());
      for (const unsigned char byte : std::span(bytes, dense.nbytes())) {
        sum_ = (sum_ ^ byte) * 0x100000001b3U;
      }
    } else if (value.isGenericDict()) {
      for (const auto& item : value.toGenericDict()) add(item.value());
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) add(item);
    } else if (value.isDouble()) {
      add(at::tensor(value.toDouble(), at::kDouble));
    }
  }
  std::uint64_t sum() const { return sum_; }

 private:
  std::uint64_t sum_ = 0xcbf29ce484222325U;
};

/// What the program counts beside its model: in the state, so that it recovers too.
struct Counters {
  at::Tensor samples = at::zeros({1}, at::kLong);
  at::Tensor group_sum = at::zeros({1}, at::kDouble);
  at::Tensor evaluation = at::zeros({1}, at::kDouble);
};

class Program {
 public:
  Program(const DrawnTraining& drawn, const std::string& folder)
      : drawn_(drawn),
        net_(drawn),
        optimizer_(make_optimizer(drawn, net_->parameters())),
        schedule_(*optimizer_, 7, 0.9),
        training_({.model = net_.ptr(),
                   .optimizer = optimizer_.get(),
                   .scheduler = drawn.has_schedule ? &schedule_ : nullptr,
                   .extra = {{"samples", counters_.samples},
                             {"group_sum", counters_.group_sum},
                             {"evaluation", counters_.evaluation}}},
                  {.memory_every = drawn.memory_every,
                   .check_replicas_every = drawn.check_replicas_every,
                   .directory = drawn.save_interval > 0 ? folder : "",
                   .save_interval = drawn.save_interval}) {
    at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net_->parameters()) {
      parameter.copy_((at::arange(parameter.numel(), at::kFloat).view_as(parameter) + 1).sin() / 4);
    }
  }

  int run() {
    const TrainingEnd end = training_.run(
        drawn_.steps, [this](const ProcessGroup& group) { return begin_generation(group); });
    if (end == TrainingEnd::kPreempted) {
      say(concat("saved after ", training_.steps_done()));
      return kExitPreempted;
    }
    Hash hash;
    for (const auto& [name, tensor] : state_dict(*net_)) hash.add(tensor);
    hash.add(optimizer_state_dict(*optimizer_));
    hash.add(counters_.samples);
    hash.add(counters_.group_sum);
    hash.add(counters_.evaluation);
    for (const std::string& text : places_.texts()) say(concat("passed ", text));
    say(concat("ends with ", hash.sum()));
    return 0;
  }

 private:
  using Model = DistributedDataParallel<NetImpl>;

  struct Generation {
    ProcessGroup group;
    std::vector<ProcessGroup> groups;
    std::unique_ptr<Model> model;
  };

  ResilientTraining::Step begin_generation(const ProcessGroup& group) {
    say(concat("rank ", group.rank(), " of ", group.world_size(), " begins at ",
               training_.steps_done()));
    auto generation = std::make_shared<Generation>();
    generation->group = group;
    for (const std::vector<int>& ranks : drawn_.groups) {
      const PassedPlaces::Phase phase = enter("new_group");
      generation->groups.push_back(group.new_group(ranks, {.backend = drawn_.group_backend}));
    }
    {
      const PassedPlaces::Phase phase = enter("construction");
      if (drawn_.has_sync_batch_norm) convert_sync_batchnorm(*net_, {.process_group = group});
      generation->model = std::make_unique<Model>(
          net_.ptr(), DistributedDataParallelOptions{.process_group = group});
    }
    return [this, generation](std::int64_t step) {
      make_step(*generation, step);
      say(concat("made ", step));
    };
  }

  PassedPlaces::Phase enter(const std::string& phase) {
    say(concat("enters ", phase));
    return {places_, phase};
  }

  void make_step(Generation& generation, std::int64_t step) {
    Model& model = *generation.model;
    const int rank = generation.group.rank();
    if (drawn_.groups_every > 0 && step % drawn_.groups_every == 0)
      sum_over_groups(generation, step);
    optimizer_->zero_grad();
    for (int pass = 0; pass < drawn_.accumulation_steps; ++pass) {
      const at::Tensor inputs = inputs_of(drawn_, step, pass, rank);
      const auto backward = [&] {
        const at::Tensor loss = loss_of(model(inputs), inputs);
        if (drawn_.is_ragged) {
          model.backward(loss, {.weight = static_cast<double>(inputs.size(0))});
        } else {
          loss.backward();
        }
      };
      counters_.samples.add_(4);
      if (pass + 1 < drawn_.accumulation_steps) {
        const auto guard = model.no_sync();
        backward();
      } else {
        backward();
      }
    }
    optimizer_->step();
    if (drawn_.evaluate_every > 0 && step % drawn_.evaluate_every == 0) {
      evaluate(generation, step);
    }
  }

  // Every rank gets the same sum: the state is the same on all ranks.
  void sum_over_groups(const Generation& generation, std::int64_t step) {
    at::Tensor sum = at::zeros({1}, at::kDouble);
    for (std::size_t index = 0; index < generation.groups.size(); ++index) {
      const ProcessGroup& group = generation.groups[index];
      if (!group) continue;
      at::Tensor part = at::full({1}, static_cast<double>(step + group.rank() + 1), at::kDouble);
      group.all_reduce(part);
      sum.add_(part * static_cast<double>(index + 1));
    }
    generation.group.all_reduce(sum);
    counters_.group_sum.add_(sum);
  }

  // After the update: a rank that fails here has changed parameters of a step that it did not make.
  void evaluate(Generation& generation, std::int64_t step) {
    const PassedPlaces::Phase phase = enter("evaluation");
    net_->eval();
    at::NoGradGuard no_grad;
    const at::Tensor inputs = inputs_of(drawn_, step, 0, generation.group.rank());
    at::Tensor loss = loss_of((*generation.model)(inputs), inputs).to(at::kDouble).view({1});
    net_->train();
    generation.group.all_reduce(loss, {.op = ReduceOp::kAvg});
    counters_.evaluation.add_(loss);
  }

  const DrawnTraining drawn_;
  Net net_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  torch::optim::StepLR schedule_;
  Counters counters_;
  PassedPlaces places_;
  ResilientTraining training_;
};

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    using namespace lockstep;
    const auto seed = argc > 1 ? parse_number<std::uint64_t>(argv[1]) : std::nullopt;
    const auto ranks = argc > 2 ? parse_number<int>(argv[2]) : std::nullopt;
    if (argc != 4 || !seed || !ranks) throw UsageError("usage: recovery_worker SEED RANKS FOLDER");
    const auto drawn = lockstep::testing::DrawnTraining::of(*seed, *ranks);
    lockstep::testing::say(concat("starts: ", drawn.text()));
    return lockstep::testing::Program(drawn, argv[3]).run();
  });
}
