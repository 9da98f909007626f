// A program with a loop of its own under the Accelerator, whose ranks are killed:
//   accelerator_worker STEPS [KIND [MEMORY_EVERY [EPOCHS_LOOP]]]
// Ten steps are an epoch. KIND, several joined by '+': plain, accumulate, manual (accumulation),
// two (optimizers), fp16, bf16, syncbn, uneven (an epoch's last batch is smaller), check (compare
// replicas every third step), trainer (in place of a loop of its own), save (snapshots in
// $ACCELERATOR_WORKER_FOLDER), async and sharded (of these), tail (evaluations within the loop),
// places (says which failpoints it passes), per_rank (a batch of its own for each rank), drop
// (drop_last), shards (6 logical shards, shards8: 8), onecopy (one_copy_per_machine), fused
// (Lockstep's optimizers, else LibTorch's), fully (sharded), hybrid (a replica on each machine),
// swaps (evaluates other weights), hook (a comm hook, with which recovery is off), logs (the loss
// of each batch), forgets (steps read a number that is not registered), norandom (no dropout: with
// recovery off its numbers are each process's own). EPOCHS_LOOP while: a loop over loader.epoch().
// Says each step, and at the end the bits of its state, each after its pid.
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/ddp/hooks.h"
#include "lockstep/nn/convert_sync_batchnorm.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/state_dict.h"
#include "lockstep/train/accelerator.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/loggers.h"
#include "lockstep/train/trainer.h"
#include "tests/workers/live_worker.h"
#include "tests/workers/passed_places.h"

namespace lockstep::accelerator_worker {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t kStepsPerEpoch = 10;
constexpr std::int64_t kBatch = 12;
constexpr std::int64_t kMissingOfUneven = 5;  // rows of an epoch's last batch
constexpr int kCheckEvery = 3;
constexpr int kShards = 6;
// With batches per rank, so that parts differ, and each of three ranks has two for its batch norm.
constexpr std::int64_t kMoreRows = 7;

constexpr env::Variable kFault{
    "ACCELERATOR_WORKER_FAULT",
    "hang|flip|evaluation|swapped|unlogged|ended|preempted|log|logged|validation|validated|stepped|"
    "interval",
    "what the first process of rank 1 does in step 30; flip: a bit of a parameter, while all are "
    "compared; evaluation: it is killed in that before step 30; swapped: behind that of other "
    "weights; unlogged: so in step 33, of which no line was written; ended: behind the training's "
    "end; "
    "preempted: behind fit(), which a preemption has ended; stepped, interval: rank 0 is killed "
    "behind the update of step 30 or 28; the others: that of rank 0 is killed "
    "before or behind the callback that writes the metrics of "
    "step 30"};
constexpr std::int64_t kFaultyStep = 30;

constexpr env::Variable kFolder{"ACCELERATOR_WORKER_FOLDER", "path", "where snapshots and logs go"};

using testing::hash;
using testing::kEmptyHash;
using testing::PassedPlaces;
using testing::say;
using testing::say_step;
using testing::throw_if_told;

struct Rows : torch::data::datasets::Dataset<Rows, torch::data::Example<>> {
  explicit Rows(std::int64_t rows) : rows_(rows) {}
  torch::data::Example<> get(std::size_t index) override {
    const at::Tensor input = (at::arange(8) * 0.7 + static_cast<double>(index)).sin();
    return {input, input.sum(0, true)};
  }
  std::optional<std::size_t> size() const override { return static_cast<std::size_t>(rows_); }

 private:
  std::int64_t rows_;
};

[[gnu::noinline]] void turn_in_circles() {
  for (volatile int turns = 0;;) turns = turns + 1;
}

std::string fault_of(std::int64_t step, int rank, int faulty_rank = 1) {
  const bool is_faulty = step == kFaultyStep && rank == faulty_rank;
  if (!is_faulty || env::integer(env::kRestartCount).value_or(0) > 0) return "";
  return env::text(kFault).value_or("");
}

void die_if_told(const Accelerator& accelerator) {
  if (fault_of(accelerator.steps(), accelerator.process_index()) == "evaluation") raise(SIGKILL);
}

LambdaCallback dies_at_metrics(const std::string& at_log, const std::string& at_validation) {
  const auto die = [](TrainerState& state, const std::string& fault) {
    const int rank = state.accelerator.process_index();
    if (fault_of(state.time.batches, rank, 0) == fault) raise(SIGKILL);
  };
  return LambdaCallback(
      {.on_validation_end = [=](TrainerState& state, const Metrics&) { die(state, at_validation); },
       .on_log = [=](TrainerState& state, Metrics&) { die(state, at_log); }});
}

void fail_if_told(std::int64_t step, int rank, const at::Tensor& parameter) {
  throw_if_told(rank, step);
  const std::string fault = fault_of(step, rank);
  if (fault == "hang") turn_in_circles();
  if (fault == "flip") {
    const at::NoGradGuard no_grad;
    parameter.view(at::kInt).view({-1})[3].bitwise_xor_(1 << 20);
  }
}

// Never so small that a step changes no bit, however long the training is.
struct SawtoothLR : torch::optim::LRScheduler {
  using LRScheduler::LRScheduler;
  std::vector<double> get_lrs() override {
    return std::vector<double>(get_current_lrs().size(), 0.0025 * (1 + step_count_ % 4));
  }
};

struct Settings {
  std::int64_t steps = 0;
  std::string kind;
  int memory_every = 0;
  bool loops_while = false;

  bool is(const char* part) const { return kind.find(part) != std::string::npos; }
  Precision precision() const {
    if (is("fp16")) return Precision::kFloat16;
    return is("bf16") ? Precision::kBFloat16 : Precision::kFloat32;
  }
  Strategy strategy() const { return is("fully") ? Strategy::kFullyShard : Strategy::kDdp; }
  FullyShardOptions fully_shard() const {
    return {.hybrid_shard = is("hybrid") ? HybridShard::kShardInMachines : HybridShard::kNone};
  }
  int accumulation() const { return is("accumulate") ? 2 : 1; }
  int logical_shards() const {
    constexpr std::string_view kPart = "shards";
    const std::size_t at = kind.find(kPart);
    if (at == std::string::npos) return 0;
    std::string_view number = std::string_view(kind).substr(at + kPart.size());
    number = number.substr(0, number.find('+'));
    return number.empty() ? kShards : parse_number<int>(number).value();
  }
  int check_replicas_every() const {
    if (is("check")) return kCheckEvery;
    return env::text(kFault) == "flip" ? 1 : 0;
  }
  std::int64_t rows_per_epoch() const {
    const std::int64_t batches = kStepsPerEpoch * (is("manual") ? 2 : accumulation());
    return batches * kBatch - (is("uneven") ? kMissingOfUneven : 0) +
           (is("per_rank") ? kMoreRows : 0);
  }
};

// Adam, or one that counts no steps.
std::unique_ptr<torch::optim::Optimizer> make_adam(const Settings& settings, nn::Module& of) {
  if (settings.is("lion")) return std::make_unique<Lion>(of.parameters(), LionOptions{.lr = 1e-3});
  if (settings.is("momentum")) {
    return std::make_unique<SGD>(of.parameters(), SGDOptions{.lr = 0.01, .momentum = 0.9});
  }
  if (settings.is("fused")) return std::make_unique<Adam>(of.parameters(), AdamOptions{.lr = 0.01});
  return std::make_unique<torch::optim::Adam>(of.parameters(), torch::optim::AdamOptions(0.01));
}

std::unique_ptr<torch::optim::Optimizer> make_sgd(const Settings& settings, nn::Module& of) {
  if (settings.is("fused")) return std::make_unique<SGD>(of.parameters(), SGDOptions{.lr = 0.01});
  return std::make_unique<torch::optim::SGD>(of.parameters(), torch::optim::SGDOptions(0.01));
}

std::shared_ptr<CommHook> make_hook(const Settings& settings) {
  return settings.is("hook") ? std::make_shared<AllReduceHook>() : nullptr;
}

// Where the program is, for tests that choose what happens there.
class Places {
 public:
  explicit Places(const Settings& settings) : says_(settings.is("places")) {}
  /// The phase lasts until the result is destroyed.
  std::unique_ptr<PassedPlaces::Phase> enter(const std::string& phase) {
    if (!says_) return nullptr;
    say(concat("enters ", phase));
    return std::make_unique<PassedPlaces::Phase>(places_, phase);
  }
  void say_passed() const {
    if (!says_) return;
    for (const std::string& text : places_.texts()) say(concat("passed ", text));
  }

 private:
  const bool says_;
  PassedPlaces places_;
};

struct RowsTask : Task<nn::SequentialImpl> {
  explicit RowsTask(const Settings& of) : settings(of) {}
  std::shared_ptr<nn::SequentialImpl> configure_model() override {
    nn::Sequential net(nn::Linear(8, 16), nn::BatchNorm1d(16), nn::ReLU(), nn::Dropout(0.2),
                       nn::Linear(16, 1));
    if (settings.is("syncbn")) convert_sync_batchnorm(*net);
    module = net.ptr();
    return module;
  }
  std::unique_ptr<torch::optim::Optimizer> configure_optimizer(nn::SequentialImpl& net) override {
    auto adam = make_adam(settings, net);
    optimizer = adam.get();
    return adam;
  }
  std::unique_ptr<torch::optim::LRScheduler> configure_scheduler(
      torch::optim::Optimizer& adam) override {
    return std::make_unique<SawtoothLR>(adam);
  }
  at::Tensor training_step(Model& model, Batch& batch, StepContext& step) override {
    const auto index = static_cast<double>(step.batch_index());
    if (step.batch_index() % 3 == 1) step.log("now_and_then", index);
    const at::Tensor loss = (model(batch.data) - batch.target).square().mean();
    if (settings.is("logs")) step.log("logged_loss", loss);
    return (1 + index / 64) * loss;
  }
  void validation_step(Model& model, Batch& batch, StepContext& step) override {
    for (std::int64_t row = 0; row < batch.data.size(0); ++row) rows += 1;
    step.log("val_one", 1.0);
    if (settings.is("fully")) model(batch.data);
    if (!settings.is("shards")) return;  // Its bits depend on the number of ranks.
    step.log("val_loss", (model(batch.data) - batch.target).square().mean());
  }

  const Settings& settings;
  std::shared_ptr<nn::SequentialImpl> module;
  torch::optim::Optimizer* optimizer = nullptr;
  std::int64_t rows = 0;
};

// What this rank holds.
TensorDict own_state(const Settings& settings, const TrainerState& state) {
  if (!settings.is("fully")) return state_dict(state.module);
  TensorDict own;
  for (const auto& group : state.optimizer.param_groups()) {
    for (const at::Tensor& piece : group.params()) own.emplace_back("", piece);
  }
  for (const auto& buffer : state.module.named_buffers())
    own.emplace_back(buffer.key(), buffer.value());
  return own;
}

// Of all ranks, where each holds a shard.
std::uint64_t hash_of_ranks(const Settings& settings, const Accelerator& accelerator,
                            std::uint64_t own) {
  if (!settings.is("fully")) return own;
  std::uint64_t sum = kEmptyHash;
  hash(sum, accelerator.gather(at::scalar_tensor(static_cast<std::int64_t>(own), at::kLong)));
  return sum;
}

// Validates other weights.
struct SwappedWeights : Callback {
  void on_validation_start(TrainerState& state) override { scale(state, 2); }
  void on_validation_end(TrainerState& state, const Metrics&) override {
    const int rank = state.accelerator.process_index();
    const std::int64_t batches = state.time.batches;
    const bool is_logged = fault_of(batches, rank) == "swapped";
    if (is_logged || fault_of(batches - 3, rank) == "unlogged") raise(SIGKILL);
    scale(state, 0.5);
  }
  static void scale(TrainerState& state, double factor) {
    const at::NoGradGuard no_grad;
    for (const auto& group : state.optimizer.param_groups()) {
      for (const at::Tensor& weights : group.params()) at::Tensor(weights).mul_(factor);
    }
  }
};

struct ValidationPhase : Callback {
  explicit ValidationPhase(Places& of) : places(of) {}
  void on_validation_start(TrainerState&) override { phase = places.enter("evaluation"); }
  void on_validation_end(TrainerState&, const Metrics&) override { phase.reset(); }
  Places& places;
  std::unique_ptr<PassedPlaces::Phase> phase;
};

int run_trainer(const Settings& settings) {
  say("starts");
  Places places(settings);
  RowsTask task(settings);
  Trainer trainer({.max_duration = concat(settings.steps, "ba"),
                   .strategy = settings.strategy(),
                   .batch_size = kBatch,
                   .split_batches = true,
                   .precision = settings.precision(),
                   .logical_shards = settings.logical_shards(),
                   .gradient_accumulation_steps = settings.accumulation(),
                   .val_check_interval = "3ba",
                   .log_every_n_steps = 5,
                   .enable_progress_bar = false,
                   .directory = env::text(kFolder).value_or(""),
                   .save_interval = "7ba",
                   .asynchronous_saves = settings.is("async"),
                   .sharded_saves = settings.is("sharded"),
                   .memory_every = settings.memory_every,
                   .check_replicas_every = settings.check_replicas_every(),
                   .one_copy_per_machine = settings.is("onecopy"),
                   .log_samples = true,
                   .fully_shard = settings.fully_shard()});
  trainer.add(LambdaCallback({.on_train_batch_end = [](TrainerState& state) {
    const int rank = state.accelerator.process_index();
    const std::int64_t step = state.time.batches;
    if (fault_of(step, rank, 0) == "stepped") raise(SIGKILL);
    if (fault_of(step + 2, rank, 0) == "interval") raise(SIGKILL);
  }}));
  if (settings.is("swaps")) trainer.add(SwappedWeights());
  trainer.add(ValidationPhase(places));
  trainer.add(ModelCheckpoint({.monitor = "val_one"}));
  trainer.add(dies_at_metrics("log", "validated"));
  trainer.add(ThroughputMonitor());  // Its collective is what others are in when rank 0 dies.
  trainer.add(CsvLogger());
  trainer.add(TensorBoardLogger());
  trainer.add(dies_at_metrics("logged", "validation"));  // Which comes first there.
  std::uint64_t sum = kEmptyHash;
  std::int64_t recoveries = -1;
  trainer.add(LambdaCallback(
      {.on_train_batch_end =
           [&](TrainerState& state) {
             const Accelerator& accelerator = state.accelerator;
             if (std::exchange(recoveries, accelerator.recoveries()) != accelerator.recoveries()) {
               say(concat("rank ", accelerator.process_index(), " of ", accelerator.num_processes(),
                          " begins at ", state.time.batches - 1));
             }
             fail_if_told(state.time.batches - 1, accelerator.process_index(),
                          state.module.parameters()[0]);
             std::uint64_t bits = 0;
             for (const auto& [name, tensor] : own_state(settings, state)) hash(bits, tensor);
             say_step(state.time.batches - 1, concat(" has ", bits));
           },
       .on_fit_end =
           [&](TrainerState& state) {
             for (const auto& [name, tensor] : own_state(settings, state)) hash(sum, tensor);
             hash(sum, optimizer_state_dict(state.optimizer));
             sum = hash_of_ranks(settings, state.accelerator, sum);
             places.say_passed();
             say(concat("ends with ", sum));
           }}));
  const auto rows = [](std::int64_t count) {
    return Rows(count).map(torch::data::transforms::Stack<>());
  };
  const FitResult result = trainer.fit(task, rows(settings.rows_per_epoch()), rows(31));
  const bool is_preempted = result.end == FitEnd::kPreempted;
  if (is_preempted && fault_of(kFaultyStep, trainer.is_global_zero() ? 0 : 1) == "preempted")
    raise(SIGKILL);
  return is_preempted ? kExitPreempted : 0;
}

// What this rank holds.
template <class Module>
TensorDict own_state(const Settings& settings, const PreparedModel<Module>& model) {
  if (!settings.is("fully")) return state_dict(*model);
  TensorDict own = model.fully_sharded().named_parameters();
  for (const auto& buffer : model->named_buffers()) own.emplace_back(buffer.key(), buffer.value());
  return own;
}

int run(const Settings& settings) {
  if (settings.is("trainer")) return run_trainer(settings);
  const std::string folder = env::text(kFolder).value_or("");
  at::manual_seed(static_cast<std::uint64_t>(::getpid()));  // Ranks begin alike all the same.
  say("starts");
  Places places(settings);
  const bool accumulates_itself = settings.is("manual");
  Accelerator accelerator({.strategy = settings.strategy(),
                           .precision = settings.precision(),
                           .gradient_accumulation_steps = settings.accumulation(),
                           .split_batches = !settings.is("per_rank"),
                           .logical_shards = settings.logical_shards(),
                           .seed = 3,
                           .directory = folder + "/snapshots",
                           .asynchronous_saves = settings.is("async"),
                           .sharded_saves = settings.is("sharded"),
                           .sample_log_directory = folder.empty() ? "" : folder + "/data",
                           .memory_every = settings.memory_every,
                           .check_replicas_every = settings.check_replicas_every(),
                           .one_copy_per_machine = settings.is("onecopy"),
                           .ddp = {.comm_hook = make_hook(settings)},
                           .fully_shard = settings.fully_shard()});
  nn::Sequential net(nn::Linear(8, 16), nn::BatchNorm1d(16), nn::ReLU(),
                     nn::Dropout(settings.is("norandom") ? 0 : 0.2), nn::Linear(16, 1));
  nn::Linear critic(8, 1);
  for (nn::Module* module :
       {static_cast<nn::Module*>(net.get()), static_cast<nn::Module*>(critic.get())}) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : module->parameters()) {
      parameter.copy_((at::arange(parameter.numel(), at::kFloat).view_as(parameter) + 1).sin() / 4);
    }
  }
  if (settings.is("syncbn")) convert_sync_batchnorm(*net);
  const auto adam = make_adam(settings, *net);
  const auto sgd = make_sgd(settings, *critic);
  SawtoothLR sawtooth(*adam);
  auto [model, optimizer, scheduler] = accelerator.prepare(net, *adam, sawtooth);
  std::optional<PreparedModel<nn::LinearImpl>> other;
  std::optional<PreparedOptimizer<torch::optim::Optimizer>> second;
  if (settings.is("two")) {
    other.emplace(accelerator.prepare(critic));
    second.emplace(accelerator.prepare(*sgd));
  }
  auto loader = accelerator.make_data_loader(
      Rows(settings.rows_per_epoch()).map(torch::data::transforms::Stack<>()),
      {.batch_size = kBatch, .drop_last = settings.is("drop")});
  auto test = accelerator.make_data_loader(Rows(31).map(torch::data::transforms::Stack<>()),
                                           {.batch_size = 7, .shuffle = false});
  const at::Tensor seen = at::zeros({1}, at::kLong);
  const at::Tensor found = at::zeros({1}, at::kDouble);
  accelerator.register_for_checkpointing("counts", {{"seen", seen}, {"found", found}});
  if (settings.is("save")) {
    accelerator.load_state();
    accelerator.gather(seen);  // In a replacement it reaches nobody.
  }

  const bool evaluates_in_steps = settings.is("inner");
  const auto evaluate = [&](bool is_in_step = false) {
    const auto phase = places.enter("evaluation");
    return accelerator.evaluate([&] {
      const at::NoGradGuard no_grad;
      double sum = 0;
      model->eval();
      for (auto& batch : test) {
        const at::Tensor output = model.forward(batch.data);
        sum += accelerator.gather_for_metrics(at::ones_like(output)).sum().item<double>();
        if (is_in_step == evaluates_in_steps) die_if_told(accelerator);
      }
      model->train();
      return sum;
    });
  };
  std::int64_t recoveries = -1;
  int own_steps = 0;
  const auto train = [&] {
    for (auto& batch : loader) {
      const auto accumulating = accelerator.accumulate();
      if (std::exchange(recoveries, accelerator.recoveries()) != accelerator.recoveries()) {
        say(concat("rank ", accelerator.process_index(), " of ", accelerator.num_processes(),
                   " begins at ", accelerator.steps()));
      }
      seen.add_(batch.data.size(0));
      if (evaluates_in_steps) {
        const double result = evaluate(/*is_in_step=*/true);
        if (!std::isnan(result) && result != 31) say(concat("wrong evaluation ", result));
      }
      const std::int64_t before = accelerator.steps();
      if (second) {
        second->zero_grad();
        accelerator.backward((other->forward(batch.data) - batch.target).square().mean());
        second->step();
      }
      const bool is_second = loader.cursor().batches % 2 == 0;  // It is behind the batch at hand.
      if (!accumulates_itself || !is_second) optimizer.zero_grad();
      const at::Tensor loss = (model.forward(batch.data) - batch.target).square().mean();
      accelerator.backward(loss);
      if (accumulates_itself && !is_second) continue;
      accelerator.clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
      scheduler.step();
      if (accelerator.steps() == before) continue;
      if (settings.is("forgets")) {
        const at::NoGradGuard no_grad;
        net->parameters()[0].mul_(1 - 1e-4 * ++own_steps);
      }
      fail_if_told(before, accelerator.process_index(), net->parameters()[0]);
      std::uint64_t sum = 0;
      for (const auto& [name, tensor] : own_state(settings, model)) hash(sum, tensor);
      for (const auto& [name, tensor] : state_dict(*critic)) hash(sum, tensor);
      say_step(before, concat(" has ", sum));
      if (settings.is("tail") && before % 3 == 0) {
        const auto scale_weights = [&](double factor) {
          if (!settings.is("swaps")) return;
          const at::NoGradGuard no_grad;
          for (auto& [name, weights] : own_state(settings, model))
            if (weights.requires_grad()) weights.mul_(factor);
        };
        scale_weights(2);
        const double result = evaluate();
        scale_weights(0.5);
        found.add_(result);
        accelerator.print(::getpid(), " evaluated ", before, " as ", result);
      }
      if (settings.is("save") && before % 4 == 0) {
        const auto phase = places.enter("save");
        accelerator.save_state();
      }
    }
    const double result = evaluate();
    if (std::isnan(result)) return;  // The training had ended when this process joined it.
    if (result != 31) say(concat("wrong evaluation ", result));
    found.add_(result);
    accelerator.print(::getpid(), " epoch ", loader.epoch());
  };
  const std::int64_t epochs = settings.steps / kStepsPerEpoch;
  if (settings.loops_while) {
    while (loader.epoch() < epochs) train();
    accelerator.end_training();
  } else {
    for (const std::int64_t epoch : accelerator.epochs(epochs)) {
      train();
      if (epoch >= epochs) say("an epoch too many");
    }
  }
  accelerator.wait_for_saves();
  if (fault_of(kFaultyStep, accelerator.process_index()) == "ended") raise(SIGKILL);
  std::uint64_t sum = kEmptyHash;
  for (const auto& [name, tensor] : own_state(settings, model)) hash(sum, tensor);
  for (const auto& [name, tensor] : state_dict(*critic)) hash(sum, tensor);
  hash(sum, optimizer_state_dict(*adam));
  sum = hash_of_ranks(settings, accelerator, sum);
  hash(sum, found);
  for (const auto& [name, tensor] : accelerator.scaler().state_dict()) hash(sum, tensor);
  places.say_passed();
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
          "usage: accelerator_worker STEPS [KIND [MEMORY_EVERY [for|while]]]");
    }
    return run({.steps = *number(1),
                .kind = argc > 2 ? argv[2] : "plain",
                .memory_every = static_cast<int>(number(3).value_or(0)),
                .loops_while = argc > 4 && std::string(argv[4]) == "while"});
  });
}

}  // namespace lockstep::accelerator_worker
