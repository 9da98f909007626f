// Trains a task of bench/tasks in logical shards, for run.py:
//   same_bits train TASK SHARDS EPOCHS [KILLS SEED FOLDER]
//       with an Accelerator; says each step and the bits at the end
//   same_bits oracle TASK SHARDS EPOCHS
//       the same in one process, with LibTorch alone
//   same_bits cost TASK STEPS
//       on the ranks of this job, for 1, 2 and 4 micro-batches per rank and step: "cost
//       MICRO-BATCHES MS-OF-A-STEP-WITHOUT MS-OF-A-STEP-WITH-LOGICAL-SHARDS"
// Lines of train and oracle begin with the process's pid.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include "bench/same_bits/random_kills.h"
#include "bench/tasks/task.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/data/epoch_plan.h"
#include "lockstep/os/machine/affinity.h"
#include "lockstep/program/run_main.h"
#include "lockstep/recovery/internal/step_seed.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/state_dict.h"
#include "lockstep/train/accelerator.h"
#include "tests/shard_oracle.h"
#include "tests/workers/live_worker.h"

namespace lockstep::bench::same_bits {
namespace {

using testing::hash;
using testing::say;
using Clock = std::chrono::steady_clock;

// Global batches of an epoch; the last one has only some samples.
constexpr std::int64_t kFullSteps = 6;
constexpr std::int64_t kTail = 3;
constexpr std::uint64_t kSeed = 1;
constexpr int kBitsOfBatches = 40;  // As in Accelerator: the step's number is below the epoch's.

struct Rows : torch::data::datasets::BatchDataset<Rows, torch::data::Example<>> {
  explicit Rows(torch::data::Example<> all) : samples(std::move(all)) {}
  torch::data::Example<> get_batch(torch::ArrayRef<std::size_t> indices) override {
    const at::Tensor rows =
        at::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), at::kLong);
    return {samples.data.index_select(0, rows), samples.target.index_select(0, rows)};
  }
  std::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(samples.data.size(0));
  }
  torch::data::Example<> samples;
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Task& task) {
  const auto parameters = task.model->parameters();
  if (task.with_adamw) return std::make_unique<torch::optim::AdamW>(parameters, 1e-3);
  return std::make_unique<torch::optim::Adam>(parameters, 1e-3);
}

struct Workload {
  Workload(const std::string& name, int shards, std::int64_t tail = kTail) {
    at::manual_seed(kSeed);
    task = make_task(name);
    batch_of_shard = std::max<std::int64_t>(1, task.batch_size / shards);
    rows.emplace(task.samples(kFullSteps * batch_of_shard * shards + tail));
    optimizer = make_optimizer(task);
  }
  Task task;
  std::int64_t batch_of_shard = 0;
  std::optional<Rows> rows;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

void say_end(const Workload& workload) {
  std::uint64_t sum = testing::kEmptyHash;
  for (const auto& [name, tensor] : state_dict(*workload.task.model)) hash(sum, tensor);
  hash(sum, optimizer_state_dict(*workload.optimizer));
  say(concat("ends with ", sum));
}

void train(const std::string& name, int shards, std::int64_t epochs, RandomKills& kills) {
  say("starts");
  Workload workload(name, shards);
  Accelerator accelerator({.logical_shards = shards, .seed = kSeed});
  auto [model, optimizer] = accelerator.prepare(workload.task.model, *workload.optimizer);
  auto loader =
      accelerator.make_data_loader(*workload.rows, {.batch_size = workload.batch_of_shard});
  std::int64_t recoveries = -1;
  std::int64_t begun = -1;
  for ([[maybe_unused]] const std::int64_t epoch : accelerator.epochs(epochs)) {
    for (auto& batch : loader) {
      const std::int64_t step = accelerator.steps();
      const bool has_joined =
          std::exchange(recoveries, accelerator.recoveries()) != accelerator.recoveries();
      if (has_joined) {
        say(concat("rank ", accelerator.process_index(), " of ", accelerator.num_processes(),
                   " begins at ", step));
      }
      if (std::exchange(begun, step) != step || has_joined) {
        kills.begin_step(step, accelerator.process_index(), accelerator.num_processes());
      }
      optimizer.zero_grad();
      accelerator.backward(workload.task.loss(model.forward(batch.data), batch.target));
      optimizer.step();
      if (accelerator.steps() > step) say(concat("step ", step));
    }
  }
  say_end(workload);
}

void make_step_of_oracle(Workload& workload, int shards, const EpochPlan& plan,
                         const EpochOrder& order, std::int64_t epoch, std::int64_t number) {
  testing::step_of_oracle(*workload.task.model, shards, [&](int shard) {
    const SampleRange range = plan.share(number, shard);
    if (range.size == 0) return testing::OracleShard();
    const double part =
        static_cast<double>(range.size) / static_cast<double>(plan.step(number).size);
    seed_step(kSeed, shard, (epoch << kBitsOfBatches) + number, at::kCPU);
    const auto batch = workload.rows->get_batch(order.samples(range));
    const at::Tensor loss =
        workload.task.loss(workload.task.model->forward(batch.data), batch.target);
    (loss * part).backward();
    return testing::OracleShard{.loss = loss.item<double>(), .fraction_of_step = part};
  });
  workload.optimizer->step();
}

void run_oracle(const std::string& name, int shards, std::int64_t epochs) {
  at::set_num_threads(1);
  Workload workload(name, shards);
  const auto samples = static_cast<std::int64_t>(workload.rows->size().value());
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    EpochOrder order(samples, /*shuffle=*/true);
    order.set_epoch(kSeed, epoch);
    const EpochPlan plan({.dataset_size = samples, .batch_size = workload.batch_of_shard * shards},
                         {.seed = kSeed, .epoch = epoch}, shards);
    for (std::int64_t number = 0; number < plan.steps(); ++number) {
      make_step_of_oracle(workload, shards, plan, order, epoch, number);
    }
  }
  say_end(workload);
}

// Milliseconds a step, without the first. Shards of a rank: 0 for none; else as many batches are
// accumulated without logical shards.
double step_ms(const std::string& name, int ranks, int batches, bool in_shards, int steps) {
  // Full steps only: without logical shards a smaller last step has fewer micro-batches.
  Workload workload(name, ranks * batches, /*tail=*/0);
  Accelerator accelerator({.gradient_accumulation_steps = in_shards ? 1 : batches,
                           .logical_shards = in_shards ? ranks * batches : 0,
                           .recover = false});
  auto [model, optimizer] = accelerator.prepare(workload.task.model, *workload.optimizer);
  auto loader = accelerator.make_data_loader(
      *workload.rows, {.batch_size = workload.batch_of_shard, .drop_last = true});
  Clock::time_point begin;
  for (;;) {
    for (auto& batch : loader) {
      const auto accumulating = accelerator.accumulate();
      const std::int64_t step = accelerator.steps();
      optimizer.zero_grad();
      accelerator.backward(workload.task.loss(model.forward(batch.data), batch.target));
      optimizer.step();
      if (accelerator.steps() == step) continue;
      if (step == 0) begin = Clock::now();
      if (step == steps) {
        return std::chrono::duration<double, std::milli>(Clock::now() - begin).count() / steps;
      }
    }
  }
}

void measure_cost(const std::string& name, int steps) {
  const ProcessGroup group = init_process_group();
  const std::vector<int> cpus = allowed_cpus();
  const auto rank = static_cast<std::size_t>(group.rank());
  if (static_cast<std::size_t>(group.world_size()) <= cpus.size()) pin_to_cpu(cpus[rank]);
  at::set_num_threads(1);
  bool begins_with_shards = false;
  for (const int batches : {1, 2, 4}) {
    double took_ms[2] = {};
    for (const bool in_shards : {begins_with_shards, !begins_with_shards}) {
      took_ms[in_shards ? 1 : 0] = step_ms(name, group.world_size(), batches, in_shards, steps);
    }
    begins_with_shards = !begins_with_shards;
    if (group.rank() != 0) continue;
    std::printf("cost %d %.6f %.6f\n", batches, took_ms[0], took_ms[1]);
    std::fflush(stdout);
  }
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_main([&] {
    const auto number = [&](int at) {
      const auto value = argc > at ? parse_number<int>(argv[at]) : std::nullopt;
      if (!value || *value < 1) throw UsageError("same_bits: run it by bench/same_bits/run.py");
      return *value;
    };
    const std::string what = argv[1];
    if (what == "cost") {
      measure_cost(argv[2], number(3));
    } else if (what == "oracle") {
      run_oracle(argv[2], number(3), number(4));
    } else {
      const std::int64_t epochs = number(4);
      RandomKills kills =
          argc > 7 ? RandomKills(number(5), epochs * (kFullSteps + 1), number(6), argv[7])
                   : RandomKills();
      train(argv[2], number(3), epochs, kills);
    }
    return 0;
  });
}

}  // namespace lockstep::bench::same_bits
