// Trains a task of bench/tasks in a loop of its own under the Accelerator, or by the Trainer, with
// an evaluation and a snapshot after each epoch, while its ranks are killed (accelerator.py):
//   model_worker accelerator|trainer TASK[+onecopy] EPOCHS FOLDER
// Says each step, with the bits of the model, after its pid, and how many steps an epoch has. With
// onecopy, ranks have one copy of the model, and there is neither evaluation nor snapshot.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include "bench/tasks/task.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/state_dict.h"
#include "lockstep/train/accelerator.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/trainer.h"
#include "tests/workers/live_worker.h"

namespace lockstep::bench::model_worker {
namespace {

using testing::hash;
using testing::say;
using torch::nn::SequentialImpl;

// Batches of one rank; the rest of the samples are for evaluations.
constexpr std::int64_t kTrainingBatches = 48;
constexpr std::int64_t kEvaluationBatches = 8;

struct Rows : torch::data::datasets::BatchDataset<Rows, torch::data::Example<>> {
  Rows(const torch::data::Example<>& samples, std::int64_t first, std::int64_t count)
      : data(samples.data.narrow(0, first, count)),
        target(samples.target.narrow(0, first, count)) {}
  torch::data::Example<> get_batch(torch::ArrayRef<std::size_t> indices) override {
    const at::Tensor rows =
        at::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), at::kLong);
    return {data.index_select(0, rows), target.index_select(0, rows)};
  }
  std::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(data.size(0));
  }

  at::Tensor data;
  at::Tensor target;
};

constexpr const char* kOneCopy = "+onecopy";
// Of larger tensors some elements are hashed, so that a step says its bits in no time.
constexpr std::int64_t kMostHashed = 1 << 16;

at::Tensor sample_of(const at::Tensor& tensor) {
  const std::int64_t stride = tensor.numel() / kMostHashed + 1;
  return stride == 1 ? tensor : tensor.flatten().slice(0, 0, std::nullopt, stride);
}

struct Workload {
  explicit Workload(const std::string& name) : has_one_copy(name.ends_with(kOneCopy)) {
    at::manual_seed(1);
    task = make_task(name.substr(0, name.find(kOneCopy)));
    if (task.fill && env::integer(env::kRestartCount).value_or(0) == 0) task.fill();
    at::manual_seed(1);
    const std::int64_t training = kTrainingBatches * task.batch_size;
    const std::int64_t evaluation = kEvaluationBatches * task.batch_size;
    const auto samples = task.samples(training + evaluation);
    train.emplace(samples, 0, training);
    test.emplace(samples, training, evaluation);
  }
  std::unique_ptr<torch::optim::Optimizer> make_optimizer(SequentialImpl& model) const {
    if (has_one_copy) {
      return std::make_unique<AdamW>(model.parameters(), AdamWOptions{.lr = 1e-3});
    }
    if (task.with_adamw) return std::make_unique<torch::optim::AdamW>(model.parameters(), 1e-3);
    return std::make_unique<torch::optim::Adam>(model.parameters(), 1e-3);
  }

  const bool has_one_copy;
  Task task;
  std::optional<Rows> train;
  std::optional<Rows> test;
};

/// What accelerator.py hears of a step.
class Speaker {
 public:
  void say_step(const Accelerator& accelerator, const SequentialImpl& model, std::int64_t step) {
    if (std::exchange(recoveries_, accelerator.recoveries()) != accelerator.recoveries()) {
      say(concat("rank ", accelerator.process_index(), " of ", accelerator.num_processes(),
                 " begins at ", step));
      say(concat("epoch ", kTrainingBatches / accelerator.num_processes(), " steps"));
    }
    std::uint64_t sum = testing::kEmptyHash;
    for (const auto& [name, tensor] : state_dict(model)) hash(sum, sample_of(tensor));
    say(concat("step ", step, " has ", sum));
  }

 private:
  std::int64_t recoveries_ = -1;
};

void run_accelerator(Workload& workload, std::int64_t epochs, const std::string& folder) {
  Speaker speaker;
  Accelerator accelerator(
      {.seed = 1, .directory = folder, .one_copy_per_machine = workload.has_one_copy});
  const auto owned = workload.make_optimizer(*workload.task.model);
  auto [model, optimizer] = accelerator.prepare(workload.task.model, *owned);
  const DataLoaderOptions batches{.batch_size = workload.task.batch_size};
  auto loader = accelerator.make_data_loader(*workload.train, batches);
  auto test = accelerator.make_data_loader(*workload.test, batches);
  for ([[maybe_unused]] const std::int64_t epoch : accelerator.epochs(epochs)) {
    for (auto& batch : loader) {
      const std::int64_t step = accelerator.steps();
      optimizer.zero_grad();
      accelerator.backward(workload.task.loss(model.forward(batch.data), batch.target));
      optimizer.step();
      if (accelerator.steps() > step) speaker.say_step(accelerator, *workload.task.model, step);
    }
    if (workload.has_one_copy) continue;
    accelerator.evaluate([&] {
      const at::NoGradGuard no_grad;
      double sum = 0;
      for (auto& batch : test) {
        const at::Tensor loss = workload.task.loss(model.forward(batch.data), batch.target);
        sum += accelerator.reduce(loss).item<double>();
      }
      return sum;
    });
    accelerator.save_state();
  }
}

struct TrainedTask : lockstep::Task<SequentialImpl> {
  explicit TrainedTask(Workload& of) : workload(of) {}
  std::shared_ptr<SequentialImpl> configure_model() override { return workload.task.model.ptr(); }
  std::unique_ptr<torch::optim::Optimizer> configure_optimizer(SequentialImpl& model) override {
    return workload.make_optimizer(model);
  }
  at::Tensor training_step(Model& model, Batch& batch, StepContext&) override {
    return workload.task.loss(model(batch.data), batch.target);
  }
  void validation_step(Model& model, Batch& batch, StepContext& step) override {
    step.log("val_loss", workload.task.loss(model(batch.data), batch.target));
  }

  Workload& workload;
};

void run_trainer(Workload& workload, std::int64_t epochs, const std::string& folder) {
  TrainedTask task(workload);
  Speaker speaker;
  Trainer trainer({.max_duration = concat(epochs, "ep"),
                   .batch_size = workload.task.batch_size,
                   .seed = 1,
                   .enable_progress_bar = false,
                   .directory = folder});
  trainer.add(LambdaCallback({.on_train_batch_end = [&](TrainerState& state) {
    speaker.say_step(state.accelerator, *workload.task.model, state.time.batches - 1);
  }}));
  trainer.fit(task, *workload.train, *workload.test);
}

int run(const std::string& loop, const std::string& task, std::int64_t epochs,
        const std::string& folder) {
  say("starts");
  Workload workload(task);
  if (loop == "trainer") {
    run_trainer(workload, epochs, folder);
  } else {
    run_accelerator(workload, epochs, folder);
  }
  return 0;
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_main([&] {
    const auto epochs = argc == 5 ? parse_number<std::int64_t>(argv[3]) : std::nullopt;
    if (!epochs) throw UsageError("model_worker: run it by bench/recovery/accelerator.py");
    return run(argv[1], argv[2], *epochs, argv[4]);
  });
}

}  // namespace lockstep::bench::model_worker
