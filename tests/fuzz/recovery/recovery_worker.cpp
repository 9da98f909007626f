// A rank of a program that a seed makes up (drawn_training.h):
//   recovery_worker SEED RANKS FOLDER resilient|plain|server [RANKS: 0 where their number changes]
// resilient: under ResilientTraining; plain: DistributedDataParallel and snapshots, from which all
// ranks restart; server: under a parameter server. Each line begins with the pid. "starts", "rank R
// of W begins at S" in each generation, "enters PHASE" (new_group, construction, evaluation, save),
// "step S has HASH" once a step is made on this rank (server: before it), "passed PHASE: ..."
// failpoints (passed_places.h), "ends with HASH" of parameters, buffers, optimizer and counters.
// FOLDER: where snapshots go.
#include <algorithm>
#include <map>
#include <memory>
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

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/nn/convert_sync_batchnorm.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parameter_server/training.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/snapshot/state_dict.h"
#include "lockstep/train/resilient_training.h"
#include "tests/fuzz/recovery/drawn_training.h"
#include "tests/workers/live_worker.h"
#include "tests/workers/passed_places.h"

namespace lockstep::testing::recovery_worker {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t kInputs = 6;
// 300 KiB of float32: above the size at which a gradient is exchanged by itself.
constexpr std::int64_t kLargeWidth = 277;

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

/// The model and what it is trained by, in the loop of one of the functions below.
class Program {
 public:
  using Model = DistributedDataParallel<NetImpl>;

  struct Generation {
    ProcessGroup group;
    std::vector<ProcessGroup> groups;
    std::unique_ptr<Model> model;
  };

  explicit Program(const DrawnTraining& program) : drawn(program), net(program) {
    at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) {
      parameter.copy_((at::arange(parameter.numel(), at::kFloat).view_as(parameter) + 1).sin() / 4);
    }
  }

  TensorDict counters() const {
    return {{"samples", samples_}, {"group_sum", group_sum_}, {"evaluation", evaluation_}};
  }

  static void say_begin(int rank, int world_size, std::int64_t step) {
    say(concat("rank ", rank, " of ", world_size, " begins at ", step));
  }

  Generation begin_generation(const ProcessGroup& group, std::int64_t step) {
    say_begin(group.rank(), group.world_size(), step);
    Generation generation;
    generation.group = group;
    for (const std::vector<int>& ranks : drawn.groups) {
      const PassedPlaces::Phase phase = enter("new_group");
      generation.groups.push_back(group.new_group(ranks, {.backend = drawn.group_backend}));
    }
    const PassedPlaces::Phase phase = enter("construction");
    if (drawn.has_sync_batch_norm) convert_sync_batchnorm(*net, {.process_group = group});
    generation.model = std::make_unique<Model>(
        net.ptr(), DistributedDataParallelOptions{
                       .process_group = group,
                       .one_copy_per_machine = drawn.has_one_copy && group.shares_memory()});
    return generation;
  }

  void make_step(Generation& generation, std::int64_t step) {
    Model& model = *generation.model;
    const int rank = generation.group.rank();
    throw_if_told(rank, step);
    if (drawn.groups_every > 0 && step % drawn.groups_every == 0) {
      sum_over_groups(generation, step);
    }
    optimizer->zero_grad();
    for (int pass = 0; pass < drawn.accumulation_steps; ++pass) {
      const at::Tensor inputs = inputs_of(drawn, step, pass, rank);
      const auto backward = [&] {
        const at::Tensor loss = loss_of(model(inputs), inputs);
        if (drawn.is_ragged) {
          model.backward(loss, {.weight = static_cast<double>(inputs.size(0))});
        } else {
          loss.backward();
        }
      };
      samples_.add_(4);
      if (pass + 1 < drawn.accumulation_steps) {
        const auto guard = model.no_sync();
        backward();
      } else {
        backward();
      }
    }
    step_optimizer(*optimizer);
    if (drawn.evaluate_every > 0 && step % drawn.evaluate_every == 0) evaluate(generation, step);
    say_step(step);
  }

  PassedPlaces::Phase enter(const std::string& phase) {
    say(concat("enters ", phase));
    return {places_, phase};
  }

  void say_step(std::int64_t step) const {
    std::uint64_t sum = kEmptyHash;
    for (const auto& [name, tensor] : state_dict(*net)) hash(sum, tensor);
    say(concat("step ", step, " has ", sum));
  }

  void say_end(bool with_optimizer = true) const {
    std::uint64_t sum = kEmptyHash;
    for (const auto& [name, tensor] : state_dict(*net)) hash(sum, tensor);
    if (with_optimizer) hash(sum, optimizer_state_dict(*optimizer));
    for (const auto& [name, tensor] : counters()) hash(sum, tensor);
    say_places();
    say(concat("ends with ", sum));
  }

  void say_places() const {
    for (const std::string& text : places_.texts()) say(concat("passed ", text));
  }

  const DrawnTraining drawn;
  Net net;
  const std::unique_ptr<torch::optim::Optimizer> optimizer =
      make_optimizer(drawn, net->parameters());

 private:
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
    group_sum_.add_(sum);
  }

  // After the update: a rank that fails here has changed parameters of a step that it did not make.
  void evaluate(Generation& generation, std::int64_t step) {
    const PassedPlaces::Phase phase = enter("evaluation");
    net->eval();
    at::NoGradGuard no_grad;
    const at::Tensor inputs = inputs_of(drawn, step, 0, generation.group.rank());
    at::Tensor loss = loss_of((*generation.model)(inputs), inputs).to(at::kDouble).view({1});
    net->train();
    generation.group.all_reduce(loss, {.op = ReduceOp::kAvg});
    evaluation_.add_(loss);
  }

  // What the program counts beside its model: in the state, so that it recovers too.
  const at::Tensor samples_ = at::zeros({1}, at::kLong);
  const at::Tensor group_sum_ = at::zeros({1}, at::kDouble);
  const at::Tensor evaluation_ = at::zeros({1}, at::kDouble);
  PassedPlaces places_;
};

int run_resilient(const DrawnTraining& drawn, const std::string& folder) {
  Program program(drawn);
  torch::optim::StepLR schedule(*program.optimizer, 7, 0.9);
  ResilientTraining training({.model = program.net.ptr(),
                              .optimizer = program.optimizer.get(),
                              .scheduler = drawn.has_schedule ? &schedule : nullptr,
                              .extra = program.counters()},
                             {.memory_every = drawn.memory_every,
                              .check_replicas_every = drawn.check_replicas_every,
                              .directory = drawn.save_interval > 0 ? folder : "",
                              .save_interval = drawn.save_interval});
  const TrainingEnd end = training.run(drawn.steps, [&](const ProcessGroup& group) {
    const auto generation = std::make_shared<Program::Generation>(
        program.begin_generation(group, training.steps_done()));
    return [&program, generation](std::int64_t step) { program.make_step(*generation, step); };
  });
  if (end == TrainingEnd::kPreempted) {
    say(concat("saved after ", training.steps_done()));
    return kExitPreempted;
  }
  program.say_end();
  return 0;
}

// Any failed rank restarts all, from the newest snapshot.
int run_plain(const DrawnTraining& drawn, const std::string& folder) {
  Program program(drawn);
  const ProcessGroup group = init_process_group();
  at::manual_seed(static_cast<std::uint64_t>(group.rank()));
  SnapshotDirectory snapshots(folder, {.process_group = group});
  const auto resumed = snapshots.load_latest(*program.net, *program.optimizer);
  const std::int64_t done = resumed ? resumed->step : 0;
  if (resumed) {
    const TensorDict counters = program.counters();
    for (std::size_t i = 0; i < counters.size(); ++i) {
      counters[i].second.copy_(resumed->extra.at(i).second);
    }
  }
  Program::Generation generation = program.begin_generation(group, done);
  for (std::int64_t step = done; step < drawn.steps; ++step) {
    program.make_step(generation, step);
    if (drawn.save_interval > 0 && (step + 1) % drawn.save_interval == 0) {
      const PassedPlaces::Phase phase = program.enter("save");
      snapshots.save(*program.net, *program.optimizer,
                     {.step = step + 1, .extra = program.counters()});
    }
  }
  program.say_end();
  return 0;
}

// The lowest ranks are the servers.
int run_server(const DrawnTraining& drawn, const std::string& folder) {
  Program program(drawn);
  const auto make = [&](const std::vector<at::Tensor>& parameters) {
    return make_optimizer(drawn, parameters);
  };
  parameter_server::Training training({.parameters = program.net->parameters(), .optimizer = make},
                                      {.servers = drawn.world_size > 3 ? 2 : 1,
                                       .directory = drawn.save_interval > 0 ? folder : "",
                                       .save_interval = std::max(1, drawn.save_interval)});
  const auto rank = static_cast<int>(env::integer(env::kRank).value_or(0));
  Program::say_begin(rank, drawn.world_size, 0);
  training.run(drawn.steps, [&](parameter_server::ParameterClient& client) {
    Program::say_begin(rank, drawn.world_size, training.done());
    return [&](std::int64_t step) {
      throw_if_told(rank, step);
      program.say_step(step);
      program.net->zero_grad();
      for (int pass = 0; pass < drawn.accumulation_steps; ++pass) {
        const at::Tensor inputs = inputs_of(drawn, step, pass, client.trainer());
        loss_of(program.net(inputs), inputs).backward();
      }
    };
  });
  if (training.is_trainer()) {
    program.say_end(/*with_optimizer=*/false);
  } else {
    program.say_places();
  }
  return 0;
}

int run(std::uint64_t seed, int ranks, const std::string& folder, const std::string& loop_name) {
  using Loop = DrawnTraining::Loop;
  const std::map<std::string, std::pair<Loop, int (*)(const DrawnTraining&, const std::string&)>>
      loops = {{"resilient", {Loop::kResilient, run_resilient}},
               {"plain", {Loop::kPlain, run_plain}},
               {"server", {Loop::kServer, run_server}}};
  const auto found = loops.find(loop_name);
  if (found == loops.end()) throw UsageError("recovery_worker: there is no loop " + loop_name);
  const auto [loop, run_loop] = found->second;
  const DrawnTraining drawn = DrawnTraining::of(seed, ranks, loop);
  say(concat("starts: ", drawn.text()));
  return run_loop(drawn, folder);
}

}  // namespace

int run_worker(int argc, char** argv) {
  return run_main([&] {
    const auto seed = argc > 1 ? parse_number<std::uint64_t>(argv[1]) : std::nullopt;
    const auto ranks = argc > 2 ? parse_number<int>(argv[2]) : std::nullopt;
    if (argc != 5 || !seed || !ranks) {
      throw UsageError("usage: recovery_worker SEED RANKS FOLDER resilient|plain|server");
    }
    return run(*seed, *ranks, argv[3], argv[4]);
  });
}

}  // namespace lockstep::testing::recovery_worker
