// Trains a small model with every kind of state, on data that a formula gives, and survives what is
// done to its ranks: resilient_worker STEPS [SIZE [MEMORY_EVERY [SNAPSHOT_EVERY FOLDER
// [SAY_EVERY]]]]. Says each step, or each of so many, and at the end the bits of its state, each
// after its pid. SIZE: the width of its layers.
#include <csignal>
#include <cstdio>
#include <future>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/state_dict.h"
#include "lockstep/train/resilient_training.h"
#include "tests/workers/live_worker.h"

namespace lockstep::resilient_worker {
namespace {

namespace nn = torch::nn;

using testing::hash;
using testing::say;
using testing::say_step;

constexpr env::Variable kFault{"RESILIENT_WORKER_FAULT", "text",
                               "what goes wrong in rank 1 and at which step: hang:60 or "
                               "deadlock:60, once, or each time skip:60, a barrier of the others, "
                               "crash:60, or cut:60, an error of communication; "
                               "flip:60, a bit of a parameter, while all are compared"};

constexpr env::Variable kOneCopy{"RESILIENT_WORKER_ONE_COPY", "0|1",
                                 "ranks have one copy per machine, and Lockstep's optimizer"};

struct Fault {
  std::string kind;
  std::int64_t step = -1;
};

Fault fault_of(const std::string& text) {
  const auto colon = text.find(':');
  if (colon == std::string::npos) return {};
  return {text.substr(0, colon), *parse_number<std::int64_t>(text.substr(colon + 1))};
}

[[gnu::noinline]] void turn_in_circles() {
  for (volatile int turns = 0;;) turns = turns + 1;
}

// Two threads, each of which waits for what the other holds.
[[gnu::noinline]] void wait_for_each_other() {
  std::mutex left;
  std::mutex right;
  right.lock();
  std::promise<void> holds_left;
  std::thread other([&] {
    left.lock();
    holds_left.set_value();
    right.lock();
  });
  holds_left.get_future().wait();
  left.lock();
}

[[gnu::noinline]] void crash_here() {
  ::raise(SIGSEGV);
  turn_in_circles();
}

int run(std::int64_t steps, std::int64_t size, std::int64_t say_every, ResilientOptions options) {
  const Fault fault = fault_of(env::text(kFault).value_or(""));
  if (fault.kind == "flip") options.check_replicas_every = 1;
  const bool is_first_process = env::integer(env::kRestartCount).value_or(0) == 0;
  at::manual_seed(static_cast<std::uint64_t>(::getpid()));  // Ranks begin alike all the same.
  nn::Sequential net(nn::Linear(8, size), nn::BatchNorm1d(size), nn::ReLU(), nn::Dropout(0.2),
                     nn::Linear(size, 1));
  const bool has_one_copy = env::integer(kOneCopy).value_or(0) != 0;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (has_one_copy) {
    optimizer = std::make_unique<Adam>(net->parameters(), AdamOptions{.lr = 0.01});
  } else {
    optimizer = std::make_unique<torch::optim::Adam>(net->parameters(),
                                                     torch::optim::AdamOptions(0.01));
  }
  torch::optim::StepLR scheduler(*optimizer, 7, 0.9);
  const at::Tensor seen = at::zeros({1}, at::kLong);
  say("starts");
  ResilientTraining training({.model = net.ptr(),
                              .optimizer = optimizer.get(),
                              .scheduler = &scheduler,
                              .extra = {{"seen", seen}}},
                             options);
  {
    at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) {
      parameter.copy_((at::arange(parameter.numel(), at::kFloat).view_as(parameter) + 1).sin() / 4);
    }
  }
  const TrainingEnd end = training.run(steps, [&](const ProcessGroup& group) {
    using Model = DistributedDataParallel<nn::SequentialImpl>;
    std::vector<int> ranks(static_cast<std::size_t>(group.world_size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    const ProcessGroup others = group.new_group(ranks);
    const auto model = std::make_shared<Model>(
        net.ptr(), DistributedDataParallelOptions{.one_copy_per_machine = has_one_copy});
    say(concat("rank ", group.rank(), " of ", group.world_size(), " begins at ",
               training.steps_done()));
    return [&, model, group, others, is_first = true](std::int64_t step) mutable {
      const at::Tensor inputs = (at::arange(32, at::kFloat) *
                                 static_cast<double>(step * group.world_size() + group.rank() + 1))
                                    .sin()
                                    .view({4, 8});
      seen.add_(4);
      if (group.rank() != 1 && step == fault.step && fault.kind == "skip") group.barrier();
      if (group.rank() == 1 && step == fault.step) {
        if (is_first_process) say("hangs");
        if (fault.kind == "hang" && is_first_process) turn_in_circles();
        if (fault.kind == "deadlock" && is_first_process) wait_for_each_other();
        if (fault.kind == "crash") crash_here();
        if (fault.kind == "cut") throw CommError("the cable is cut");
      }
      optimizer->zero_grad();
      (model->forward(inputs) - inputs.sum(1, true)).square().mean().backward();
      optimizer->step();
      if (group.rank() == 1 && step == fault.step && fault.kind == "flip") {
        at::NoGradGuard no_grad;
        net->parameters()[0].view(at::kInt).view({-1})[3].bitwise_xor_(1 << 20);
      }
      if (std::exchange(is_first, false) || step % say_every == 0) say_step(step);
    };
  });
  if (end == TrainingEnd::kPreempted) {
    say(concat("saved after ", training.steps_done()));
    return kExitPreempted;
  }
  std::uint64_t sum = testing::kEmptyHash;
  for (const auto& [name, tensor] : state_dict(*net)) hash(sum, tensor);
  hash(sum, optimizer_state_dict(*optimizer));
  hash(sum, seen);
  say(concat("ends with ", sum));
  return 0;
}

}  // namespace

int run_worker(int argc, char** argv) {
  return lockstep::run_main([&] {
    const auto number = [&](int at) {
      return argc > at ? lockstep::parse_number<std::int64_t>(argv[at]) : std::nullopt;
    };
    if (!number(1)) {
      throw lockstep::UsageError(
          "usage: resilient_worker STEPS [SIZE [MEMORY_EVERY [SNAPSHOT_EVERY FOLDER "
          "[SAY_EVERY]]]]");
    }
    const auto every = [&](int at) { return static_cast<int>(number(at).value_or(0)); };
    return run(*number(1), number(2).value_or(16), number(6).value_or(1),
               {.memory_every = every(3),
                .directory = argc > 5 ? argv[5] : "",
                .save_interval = every(4)});
  });
}

}  // namespace lockstep::resilient_worker
