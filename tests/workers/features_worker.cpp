// The C++ side of tests/python/parity/ddp_features.py: does what ddp_features_pytorch.py does, case by
// case under the same names, and writes what came out of it for torch.load.
//   features_worker FOLDER_OF_WEIGHTS FILE_WITHOUT_RANK
#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/hooks.h"
#include "lockstep/nn/convert_sync_batchnorm.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/snapshot/state_dict.h"
#include "tests/workers/features_modules.h"

namespace lockstep::testing::features_worker {
namespace {

constexpr int kSteps = 3;
constexpr double kLearningRate = 0.01;
// Rank r has this many batches for join.
constexpr std::array<int, 4> kBatches = {2, 4, 0, 1};

using Options = DistributedDataParallelOptions;

at::Tensor loss_of(const at::Tensor& outputs) {
  return outputs.square().sum();
}

at::Tensor inputs_of(int rank, int step, std::int64_t rows = 5) {
  return at::sin(at::arange(rows * 6, at::kFloat) * (1 + rank) + step).view({rows, 6});
}

std::int64_t rows_of(int rank, int step) {
  return 2 + (3 * rank + step) % 4;
}

// Each once, by the first of its names.
TensorDict named(const torch::nn::Module& module, bool with_buffers) {
  TensorDict tensors;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      tensors.emplace_back(item.key(), item.value());
    }
  }
  if (!with_buffers) return tensors;
  for (const auto& item : module.named_buffers()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

std::vector<at::Tensor> parameters_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : named(module, false)) parameters.push_back(parameter);
  return parameters;
}

/// One rank's part in all cases.
class FeatureRun {
 public:
  FeatureRun(ProcessGroup group, std::filesystem::path folder)
      : group_(std::move(group)), rank_(group_.rank()), folder_(std::move(folder)) {}

  TensorDict run() {
    parameters_and_buckets();
    kinds_of_tensors();
    ignored_and_delayed();
    graphs();
    accumulation();
    hooks();
    power_sgd();
    local_sgd();
    uneven_inputs();
    beyond_pytorch();
    return std::move(results_);
  }

 private:
  // On each rank another multiple of the weights: only the exchange makes them equal.
  template <class Holder>
  Holder load(Holder module, const std::string& name) const {
    load_state_dict(*module, read_state_dict(folder_ / (name + ".pt")));
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters_of(*module)) parameter.mul_(1 + rank_);
    for (at::Tensor& buffer : module->buffers()) buffer.add_(rank_);
    return module;
  }
  Mlp mlp() const { return load(Mlp(), "Mlp"); }
  Stack stack(int uses = 1, bool checkpointed = false) const {
    return load(Stack(uses, checkpointed), "Stack");
  }
  Normed normed() const { return load(Normed(), "Normed"); }

  at::Tensor inputs(int step) const { return inputs_of(rank_, step); }
  at::Tensor indices(int step, int modulus, int count) const {
    return at::remainder(at::arange(count, at::kLong) * (2 + rank_) + step, modulus);
  }

  void add(const std::string& name, at::Tensor tensor) {
    tensor = tensor.detach();
    if (tensor.is_sparse()) tensor = tensor.to_dense();
    if (tensor.is_complex()) tensor = at::view_as_real(tensor);
    results_.emplace_back(name, tensor.clone());
  }
  void add_gradients(const std::string& name, const torch::nn::Module& module) {
    for (const auto& [key, parameter] : named(module, false)) {
      if (parameter.grad().defined()) add(concat(name, "/", key, ".grad"), parameter.grad());
    }
  }
  void add_state(const std::string& name, const torch::nn::Module& module) {
    for (const auto& [key, tensor] : named(module, true)) add(concat(name, "/end/", key), tensor);
  }

  struct TrainOptions {
    int steps = kSteps;
    bool set_to_none = true;
    std::function<void()> after_step = [] {};
  };
  template <class Model, class Step>
  void train(const std::string& name, Model& model, const Step& step_of,
             const TrainOptions& options = {}) {
    torch::optim::SGD optimizer(parameters_of(*model), kLearningRate);
    for (int step = 0; step < options.steps; ++step) {
      optimizer.zero_grad(options.set_to_none);
      step_of(model, step);
      add_gradients(concat(name, "/", step), *model);
      optimizer.step();
      options.after_step();
    }
    add_state(name, *model);
  }
  auto plain_step() const {
    return [this](auto& model, int step) { loss_of(model(inputs(step))).backward(); };
  }
  template <class Holder>
  void train_plainly(const std::string& name, const Holder& module, const Options& options,
                     const TrainOptions& train_options = {}) {
    DistributedDataParallel model(module, options);
    train(name, model, plain_step(), train_options);
  }

  void parameters_and_buckets();
  void kinds_of_tensors();
  void ignored_and_delayed();
  void graphs();
  void accumulation();
  void hooks();
  void power_sgd();
  void local_sgd();
  void uneven_inputs();
  void beyond_pytorch();

  ProcessGroup group_;
  int rank_;
  std::filesystem::path folder_;
  TensorDict results_;
};

void FeatureRun::parameters_and_buckets() {
  train_plainly("plain", mlp(), {});
  train_plainly("buckets/cap", mlp(), {.bucket_cap_mb = 1e-4});
  train_plainly("buckets/list", mlp(), {.bucket_cap_mb_list = {1e-5, 2e-4}});
  for (const bool view : {false, true}) {
    train_plainly(concat("views/", view), mlp(), {.gradient_as_bucket_view = view},
                  {.set_to_none = false});
  }
  const Mlp module = mlp();
  for (at::Tensor& parameter : module->second->parameters()) parameter.requires_grad_(false);
  train_plainly("frozen", module, {});
  train_plainly("init_sync", mlp(), {.init_sync = false});
}

void FeatureRun::kinds_of_tensors() {
  DistributedDataParallel tied(load(Tied(), "Tied"), {});
  train("shared", tied,
        [this](auto& model, int step) { loss_of(model(indices(step, 11, 7))).backward(); });
  DistributedDataParallel lookup(load(Lookup(), "Lookup"), {});
  train("sparse", lookup,
        [this](auto& model, int step) { loss_of(model(indices(step, 13, 2 + rank_))).backward(); });
  train_plainly("dtypes", load(Dtypes(), "Dtypes"), {});
  train_plainly("complex", load(Complex(), "Complex"), {});
  train_plainly("buffers/on", normed(), {});
  train_plainly("buffers/off", normed(), {.forward_sync_buffers = false});
  train_plainly("buffers/own", normed(),
                {.parameters_and_buffers_to_ignore = {"norm.running_mean", "norm.running_var",
                                                      "norm.num_batches_tracked"}});
}

void FeatureRun::ignored_and_delayed() {
  train_plainly("ignored", normed(),
                {.parameters_and_buffers_to_ignore = {"last.bias", "norm.running_mean"}});
  train_plainly("delayed", mlp(),
                {.delay_all_reduce_named_params = {"last.bias", "second.weight"},
                 .param_to_hook_all_reduce = "first.weight"});
}

void FeatureRun::graphs() {
  const auto branch_step = [this](auto& model, int step) {
    loss_of(*model(inputs(step), (rank_ + step) % 2)[1]).backward();
  };
  const std::pair<const char*, Options> all_options[] = {
      {"unused", {.find_unused_parameters = true}},
      {"unused_without_option", {}},
      {"hooks/unused", {.comm_hook = std::make_shared<AllReduceHook>()}}};
  for (const auto& [name, options] : all_options) {
    DistributedDataParallel model(load(Branches(), "Branches"), options);
    train(name, model, branch_step, {.steps = 4});
  }
  DistributedDataParallel found(stack(), {.find_unused_parameters = true});
  train("outside", found, [this](auto& model, int step) {
    (loss_of(model(inputs(step))) * model->unused.sum()).backward();
  });
  train_plainly("static_graph/plain", stack(2), {.static_graph = true});
  train_plainly("static_graph/checkpoint", stack(3, true), {.static_graph = true});
  train_plainly("checkpoint_without_static_graph", stack(3, true), {});
}

void FeatureRun::accumulation() {
  const auto accumulate = [this](auto& model, int step) {
    {
      const auto no_sync = model.no_sync();
      for (int micro = 0; micro < 2; ++micro) {
        loss_of(model(inputs(step + 10 * micro))).backward();
      }
    }
    loss_of(model(inputs(step + 20))).backward();
  };
  DistributedDataParallel plain(mlp(), {});
  train("no_sync", plain, accumulate);
  DistributedDataParallel of_static_graph(stack(), {.static_graph = true});
  train("no_sync/static", of_static_graph, accumulate);

  DistributedDataParallel forwards(mlp(), {});
  train("passes/forwards", forwards, [this](auto& model, int step) {
    const at::Tensor first = loss_of(model(inputs(step)));
    (first + loss_of(model(inputs(step + 7)))).backward();
  });
  DistributedDataParallel backwards(mlp(), {});
  train("passes/backwards", backwards, [this](auto& model, int step) {
    loss_of(model(inputs(step))).backward();
    loss_of(model(inputs(step + 7))).backward();
  });
}

void FeatureRun::hooks() {
  const auto with = [&](const std::string& name, std::shared_ptr<CommHook> hook, int steps) {
    train_plainly("hooks/" + name, mlp(), {.comm_hook = std::move(hook)}, {.steps = steps});
  };
  with("all_reduce", std::make_shared<AllReduceHook>(), kSteps);
  with("noop", std::make_shared<NoopHook>(), kSteps);
  with("fp16", std::make_shared<CompressHook>(at::kHalf), kSteps);
  with("bf16", std::make_shared<CompressHook>(at::kBFloat16), kSteps);
  with("per_tensor", std::make_shared<QuantizeHook>(), 1);
  with("per_channel", std::make_shared<QuantizeHook>(QuantizeOptions{.chunk_elements = 512}), 1);
  train_plainly("exchange_dtype/fp16", mlp(), {.exchange_dtype = at::kHalf});
  train_plainly("exchange_dtype/bf16", mlp(), {.exchange_dtype = at::kBFloat16});
}

void FeatureRun::power_sgd() {
  const auto full = std::make_shared<PowerSgdHook>(PowerSgdOptions{
      .matrix_approximation_rank = 9, .start_power_sgd_iter = 2, .min_compression_rate = 1e-3});
  train_plainly("power/full", mlp(), {.comm_hook = full}, {.steps = 4});
  for (const bool batched : {false, true}) {
    const auto low = std::make_shared<PowerSgdHook>(
        PowerSgdOptions{.start_power_sgd_iter = 2, .batched = batched});
    DistributedDataParallel model(mlp(), {.comm_hook = low});
    torch::optim::SGD optimizer(model.parameters(), kLearningRate);
    at::Tensor loss;
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      loss = loss_of(model(inputs(0)));
      loss.backward();
      optimizer.step();
    }
    add(batched ? "power/batched/loss" : "power/low/loss", loss);
  }
}

void FeatureRun::local_sgd() {
  PostLocalSgdOptions options{.start_local_sgd_iter = 2};
  for (int first = 0; first < group_.world_size(); first += 2) {
    std::vector<int> pair{first};
    if (first + 1 < group_.world_size()) pair.push_back(first + 1);
    const ProcessGroup subgroup = group_.new_group(pair);
    if (subgroup) options.subgroup = subgroup;
  }
  DistributedDataParallel model(mlp(), {.comm_hook = std::make_shared<PostLocalSgdHook>(options)});
  PeriodicModelAverager averager({.period = 3, .warmup_steps = 2});
  train("local_sgd", model, plain_step(),
        {.steps = 7, .after_step = [&] { averager.average_parameters(model.parameters()); }});
}

void FeatureRun::uneven_inputs() {
  std::vector<at::Tensor> own;
  for (int step = 0; step < kBatches.at(static_cast<std::size_t>(rank_)); ++step) {
    own.push_back(inputs_of(rank_, step, rows_of(rank_, step)));
  }
  for (const std::string name : {"join/plain", "join/hook", "join/weighted"}) {
    const bool with_hook = name == "join/hook";
    DistributedDataParallel model(
        mlp(), {.comm_hook = with_hook ? std::make_shared<AllReduceHook>() : nullptr});
    torch::optim::SGD optimizer(model.parameters(), kLearningRate);
    int step = 0;
    auto batches = model.join(own);
    for (const at::Tensor& batch : batches) {
      optimizer.zero_grad();
      const at::Tensor loss = model(batch).square().mean();
      if (name == "join/weighted") {
        model.backward(loss, {.weight = static_cast<double>(batch.size(0))});
      } else {
        loss.backward();
        if (batches.has_data()) add_gradients(concat(name, "/", step++), *model);
      }
      optimizer.step();
    }
    add_state(name, *model);
  }

  // Two batches a step; rank 0 has but the first one.
  std::vector<at::Tensor> two{inputs(0)};
  if (rank_ > 0) two.push_back(inputs(1));
  DistributedDataParallel model(mlp(), {});
  auto batches = model.join(two, {.gradient_accumulation_steps = 2});
  for (const at::Tensor& batch : batches) {
    const auto accumulation = batches.accumulate();
    model.backward(loss_of(model(batch)), {.weight = batches.has_data() ? 1.0 : 0.0});
  }
  add_gradients("join/accumulation", *model);
}

// What PyTorch has no word for, or refuses: compared with one process on all batches.
void FeatureRun::beyond_pytorch() {
  DistributedDataParallel weighted(mlp(), {});
  train("weighted", weighted, [this](auto& model, int step) {
    const auto backward = [&](int micro) {
      const int rows = 1 + rank_ + micro;
      const at::Tensor loss = model(inputs_of(rank_, step + micro, rows)).square().mean();
      model.backward(loss, {.weight = static_cast<double>(rows)});
    };
    {
      const auto no_sync = model.no_sync();
      backward(0);
    }
    backward(1);
  });

  Normed module = normed();
  convert_sync_batchnorm(*module);
  DistributedDataParallel synced(module, {});
  train("sync_batch_norm", synced, [this](auto& model, int step) {
    const at::Tensor loss = model(inputs_of(rank_, step, 2 + rank_)).square().mean();
    model.backward(loss, {.weight = static_cast<double>(2 + rank_)});
  });

  DistributedDataParallel penalized(mlp(), {});
  train("double_backward", penalized,
        [this](auto& model, int step) {
          model(inputs(step))
              .square()
              .mean()
              .backward({}, /*keep_graph=*/true,
                        /*create_graph=*/true);
          at::Tensor penalty = at::zeros({});
          for (at::Tensor& parameter : model->parameters()) {
            penalty = penalty + std::exchange(parameter.mutable_grad(), {}).pow(3).sum();
          }
          penalty.backward();
        },
        {.steps = 1});
}

int run(int argc, char** argv) {
  if (argc != 3) throw UsageError("usage: features_worker FOLDER_OF_WEIGHTS FILE_WITHOUT_RANK");
  const ProcessGroup group = init_process_group();
  save_snapshot(concat(argv[2], ".", group.rank()), {.extra = FeatureRun(group, argv[1]).run()});
  return 0;
}

}  // namespace

int run_worker(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}

}  // namespace lockstep::testing::features_worker
