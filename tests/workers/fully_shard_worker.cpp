// The C++ side of tests/python/parity/fully_shard.py: a small network of tokens, fully sharded.
//   train SGD|AdamW FILE_OF_WEIGHTS RESULT none|machines STEPS   trains as the test does with
//       PyTorch's FSDP2; machines: with a replica on each
//   die PLACE      trains until rank 1 kills itself in step 3, at PLACE: forward, backward
//   die-hybrid PLACE   as die, with a replica on each machine; who learns of it says so, and stays
//   for-ever       trains until something ends it
//   accelerator ddp|fully_shard FOLDER STEPS KILLED_AT   under an Accelerator, from the newest
//       snapshot in FOLDER on; the last rank of the first generation kills itself in that step
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <ATen/ATen.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/fully_shard.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/train/accelerator.h"
#include "tests/workers/live_worker.h"

namespace lockstep::fully_shard_worker {
namespace {

constexpr std::int64_t kTokens = 11;
constexpr std::int64_t kWidth = 24;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& inputs) { return inputs + down(at::tanh(up(inputs))); }
  torch::nn::Linear up{kWidth, 3 * kWidth + 1};
  torch::nn::Linear down{3 * kWidth + 1, kWidth};
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("embedding", embedding);
    register_module("blocks", blocks);
    for (int i = 0; i < 3; ++i) blocks->push_back(Block());
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor values = embedding(tokens);
    for (const auto& block : *blocks) {
      if (before_block) values = before_block(values);
      values = block->as<Block>()->forward(values);
    }
    return head(values);
  }
  torch::nn::Embedding embedding{kTokens, kWidth};
  torch::nn::ModuleList blocks;
  torch::nn::Linear head{kWidth, kTokens};
  std::function<at::Tensor(const at::Tensor&)> before_block;
};
TORCH_MODULE(Net);

at::Tensor tokens(int rank, int step) {
  return (at::arange(20) * (rank + 3) + step * 7).remainder(kTokens);
}

void backward(FullySharded<NetImpl>& model, int rank, int step) {
  const at::Tensor inputs = tokens(rank, step);
  torch::nn::functional::cross_entropy(model(inputs), (inputs * 5 + 1).remainder(kTokens))
      .backward();
}

FullySharded<NetImpl> make_model(const ProcessGroup& group,
                                 HybridShard hybrid = HybridShard::kNone) {
  return fully_shard(Net(), {.process_group = group,
                             .hybrid_shard = hybrid,
                             .auto_wrap_policy = module_wrap_policy<BlockImpl>()});
}

// Every third step has two micro-batches.
void train(const std::string& kind, const std::string& weights, const std::string& result,
           HybridShard hybrid, std::int64_t steps) {
  const ProcessGroup group = default_process_group();
  auto model = make_model(group, hybrid);
  model.load_full_state_dict(read_state_dict(weights));
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (kind == "SGD") {
    optimizer = std::make_unique<torch::optim::SGD>(
        model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
  } else {
    optimizer =
        std::make_unique<torch::optim::AdamW>(model.parameters(), torch::optim::AdamWOptions(1e-3));
  }
  at::Tensor norms = at::zeros({steps}, at::kDouble);
  for (std::int64_t step = 0; step < steps; ++step) {
    model.zero_grad();
    if (step % 3 == 0) {
      model.set_requires_gradient_sync(false);
      backward(model, group.rank(), step + 1000);
      model.set_requires_gradient_sync(true);
    }
    backward(model, group.rank(), step);
    norms[step] =
        clip_grad_norm_(model.parameters(), 1.0, {.process_group = model.process_group()});
    optimizer->step();
  }
  TensorDict trained = model.full_state_dict();
  trained.emplace_back("norms", norms);
  if (group.rank() == 0) save_snapshot(result, {.extra = std::move(trained)});
}

// Steps until it is ended; `harm` is called in step 3, before each block.
[[noreturn]] void train_for_ever(const std::string& place,
                                 HybridShard hybrid = HybridShard::kNone) {
  const ProcessGroup group = default_process_group();
  auto model = make_model(group, hybrid);
  torch::optim::SGD optimizer(model.parameters(), 1e-3);
  for (int step = 0;; ++step) {
    if (step == 3 && group.rank() == 1 && place == "forward") {
      model.module()->before_block = [](const at::Tensor&) -> at::Tensor {
        std::raise(SIGKILL);
        return {};
      };
    } else if (step == 3 && group.rank() == 1 && place == "backward") {
      model.module()->before_block = [](const at::Tensor& values) {
        values.register_hook([](const at::Tensor&) { std::raise(SIGKILL); });
        return values;
      };
    }
    model.zero_grad();
    try {
      backward(model, group.rank(), step);
    } catch (const PeerLost& error) {
      if (hybrid == HybridShard::kNone) throw;
      std::printf("%s\n", error.what());
      std::fflush(stdout);
      for (;;) ::pause();  // It ends neither itself nor, by destroying the model, the groups.
    }
    optimizer.step();
    if (step > 0) continue;
    std::printf("running\n");
    std::fflush(stdout);
  }
}

struct TokenRows : torch::data::datasets::Dataset<TokenRows, torch::data::Example<>> {
  torch::data::Example<> get(std::size_t index) override {
    const at::Tensor row =
        (at::arange(5) * 3 + static_cast<std::int64_t>(index)).remainder(kTokens);
    return {row, (row * 5 + 1).remainder(kTokens)};
  }
  std::optional<std::size_t> size() const override { return 70; }
};

// Ten steps of seven samples are an epoch, of two micro-batches each.
void train_accelerated(Strategy strategy, const std::string& folder, std::int64_t steps,
                       std::int64_t killed_at) {
  constexpr std::int64_t kSaveEvery = 4;
  Accelerator accelerator({.strategy = strategy,
                           .gradient_accumulation_steps = 2,
                           .split_batches = true,
                           .directory = folder,
                           .recover = false,
                           .fully_shard = {.auto_wrap_policy = module_wrap_policy<BlockImpl>()}});
  Net net;
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& value : net->parameters()) {
      value.copy_((at::arange(value.numel(), at::kFloat).view_as(value) + 1).sin() / 4);
    }
  }
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  auto loader = accelerator.make_data_loader(TokenRows().map(torch::data::transforms::Stack<>()),
                                             {.batch_size = 7});
  accelerator.load_state();
  accelerator.print("begins at step ", accelerator.steps());
  const bool is_first = env::integer(env::kRestartCount).value_or(0) == 0;
  const bool is_last_rank = accelerator.process_index() + 1 == accelerator.num_processes();
  while (accelerator.steps() < steps) {
    for (auto& batch : loader) {
      const auto accumulating = accelerator.accumulate();
      optimizer.zero_grad();
      const at::Tensor logits = model(batch.data);
      if (is_first && is_last_rank && accelerator.steps() == killed_at) std::raise(SIGKILL);
      accelerator.backward(
          torch::nn::functional::cross_entropy(logits.flatten(0, 1), batch.target.flatten()));
      optimizer.step();
      if (!accelerator.sync_gradients()) continue;
      if (accelerator.steps() % kSaveEvery == 0) accelerator.save_state();
      if (accelerator.steps() == steps) break;
    }
  }
  std::uint64_t bits = testing::kEmptyHash;
  for (const auto& [name, value] : accelerator.get_state_dict(*net)) testing::hash(bits, value);
  accelerator.print("ends with ", bits);
  accelerator.end_training();
}

int run(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "accelerator" && argc == 6) {
    train_accelerated(
        std::string(argv[2]) == "fully_shard" ? Strategy::kFullyShard : Strategy::kDdp, argv[3],
        std::stoll(argv[4]), std::stoll(argv[5]));
    return 0;
  }
  init_process_group();
  if (command == "train" && argc == 7) {
    train(argv[2], argv[3], argv[4],
          std::string(argv[5]) == "machines" ? HybridShard::kShardInMachines : HybridShard::kNone,
          std::stoll(argv[6]));
  } else if (command == "die" && argc == 3) {
    train_for_ever(argv[2]);
  } else if (command == "die-hybrid" && argc == 3) {
    train_for_ever(argv[2], HybridShard::kShardInMachines);
  } else if (command == "for-ever" && argc == 2) {
    train_for_ever("");
  } else {
    throw UsageError("usage: fully_shard_worker train|die|die-hybrid|for-ever|accelerator …");
  }
  return 0;
}

}  // namespace

int run_worker(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}

}  // namespace lockstep::fully_shard_worker
