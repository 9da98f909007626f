#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "tests/checkpoint.h"
#include "tests/ranks/ddp_fixture.h"
#include "tests/ranks/fixture.h"

// Graphs of every shape: what autograd may do with a module between two exchanges.
namespace lockstep::testing {
namespace {

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    first = register_module("first", torch::nn::Linear(6, 7));
    second = register_module("second", torch::nn::Linear(7, 6));
  }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(second(at::tanh(first(x)))); }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
};
TORCH_MODULE(Block);

// Two blocks of which the second is used `uses` times; each use may be checkpointed, and
// checkpoints may lie in one another.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(int uses = 1, bool checkpointed = false, bool nested = false) : uses_(uses) {
    entry = register_module("entry", Block());
    body = register_module("body", Block());
    unused = register_parameter("unused", at::ones({3}));
    part_ = [this](const at::Tensor& x) { return body(x); };
    if (checkpointed) {
      part_ = [inner = part_](const at::Tensor& x) { return Checkpoint::apply(x, inner); };
    }
    if (nested) {
      part_ = [inner = part_](const at::Tensor& x) { return Checkpoint::apply(x + x, inner); };
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = entry(x);
    for (int use = 0; use < uses_; ++use) y = part_(y);
    return y;
  }
  Block entry{nullptr};
  Block body{nullptr};
  void set_uses(int uses) { uses_ = uses; }
  at::Tensor unused;

 private:
  int uses_;
  Part part_;
};
TORCH_MODULE(Stack);

class DdpGraph : public DdpTest {
 protected:
  at::Tensor inputs(int step = 0) const {
    return at::sin(at::arange(5 * 6, at::kFloat) * (1 + rank_) + step).view({5, 6});
  }
  static at::Tensor loss_of(const at::Tensor& outputs) { return outputs.square().mean(); }
};

TEST_F(DdpGraph, PassesWithinABackwardPassEndWithTheOutermost) {
  for (const bool static_graph : {false, true}) {
    for (const int uses : {1, 3}) {
      for (const bool nested : {false, true}) {
        SCOPED_TRACE(::testing::Message() << static_graph << uses << nested);
        DistributedDataParallel model(Stack(uses, true, nested),
                                      {.bucket_cap_mb = 1e-6, .static_graph = static_graph});
        for (int step = 0; step < 3; ++step) {
          expect_average_of(
              model, [&](auto& stack) { loss_of(stack(inputs(step))).backward(); },
              Stack(uses, true, nested));
        }
        EXPECT_FALSE(model->unused.grad().defined());
      }
    }
  }
}

// A gradient that is complete after one addition, then is added to once more in its bucket.
TEST_F(DdpGraph, MoreAdditionsBeforeTheBucketIsExchangedCountOnce) {
  DistributedDataParallel model(Stack(1, true), {});
  for (int step = 0; step < 3; ++step) {
    const int uses = step == 0 ? 1 : 2;
    model->set_uses(uses);
    Stack plain(uses, true);
    copy_state(*model, *plain);
    loss_of(plain(inputs(step))).backward();
    model->zero_grad(/*set_to_none=*/false);
    loss_of(model(inputs(step))).backward();
    for (const at::Tensor& parameter : plain->parameters()) {
      if (!parameter.grad().defined()) continue;
      at::Tensor gradient = parameter.grad();
      group_.all_reduce(gradient);
      gradient /= world_size_;
    }
    expect_close_gradients(model->parameters(), plain->parameters());
  }
}

// Gradients of a part that the outputs of a step's last pass do not reach, but what is recomputed
// does.
TEST_F(DdpGraph, GradientsKeptFromPassesWithoutSyncCountOnce) {
  DistributedDataParallel model(Stack(), {.find_unused_parameters = true});
  const Part body = [&](const at::Tensor& x) { return model->body(x); };
  for (int step = 0; step < 3; ++step) {
    Stack plain;
    const Part plain_body = [&](const at::Tensor& x) { return plain->body(x); };
    const auto run = [&](auto& stack, const Part& part, auto&& no_sync) {
      {
        [[maybe_unused]] const auto guard = no_sync();
        loss_of(step == 0 ? stack(inputs(step)) : part(inputs(step))).backward();
      }
      stack->set_uses(step == 0 ? 1 : 0);
      const at::Tensor outputs = stack(inputs(step + 1));
      stack->set_uses(1);
      loss_of(step == 0 ? outputs : Checkpoint::apply(outputs, part)).backward();
    };
    copy_state(*model, *plain);
    run(plain, plain_body, [] { return 0; });
    model->zero_grad(/*set_to_none=*/step == 0);
    run(model, body, [&] { return model.no_sync(); });
    for (const at::Tensor& parameter : plain->parameters()) {
      if (!parameter.grad().defined()) continue;
      at::Tensor gradient = parameter.grad();
      group_.all_reduce(gradient);
      gradient /= world_size_;
    }
    expect_close_gradients(model->parameters(), plain->parameters());
  }
}

TEST_F(DdpGraph, MoreAdditionsThanInTheFirstPassAreRefusedByName) {
  NEEDS_RANKS(2);
  const ProcessGroup group = group_.new_group(all_ranks());
  DistributedDataParallel model(Stack(1, true), {.process_group = group, .bucket_cap_mb = 1e-6});
  loss_of(model(inputs())).backward();
  const Part body = [&](const at::Tensor& x) { return model->body(x); };
  const std::string message =
      message_of<UsageError>([&] { loss_of(Checkpoint::apply(model(inputs()), body)).backward(); });
  EXPECT_SAYS(message, "parameter 'body.second.");
  EXPECT_SAYS(message, "got another gradient after its bucket was exchanged");
  EXPECT_SAYS(message_of<UsageError>([&] { model(inputs()); }), "did not end");
}

TEST_F(DdpGraph, ModulesUsedSeveralTimesAndForwardsBeforeOneBackward) {
  DistributedDataParallel model(Stack(3), {});
  for (int step = 0; step < 2; ++step) {
    expect_average_of(
        model,
        [&](auto& stack) {
          const at::Tensor first = loss_of(stack(inputs(step)));
          (first + loss_of(stack(inputs(step + 7)))).backward();
        },
        Stack(3));
  }
}

struct NormedStackImpl : torch::nn::Module {
  NormedStackImpl() {
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    block = register_module("block", Block());
  }
  at::Tensor forward(const at::Tensor& x) { return block(norm(x)); }
  torch::nn::BatchNorm1d norm{nullptr};
  Block block{nullptr};
};
TORCH_MODULE(NormedStack);

TEST_F(DdpGraph, BuffersAreGivenAnewBetweenForwardsOfOneBackward) {
  DistributedDataParallel model(NormedStack(), {});
  expect_average_of(
      model,
      [&](auto& stack) {
        const at::Tensor first = loss_of(stack(inputs(0)));
        (first + loss_of(stack(inputs(1)))).backward();
      },
      NormedStack());
  EXPECT_TRUE(same_bits_everywhere(model->buffers()));
}

TEST_F(DdpGraph, SeveralBackwardPassesAddUpAverages) {
  DistributedDataParallel model(Stack(), {});
  expect_average_of(
      model,
      [&](auto& stack) {
        loss_of(stack(inputs(0))).backward();
        loss_of(stack(inputs(1))).backward();
      },
      Stack());
}

// A penalty on the gradient: differentiates what was exchanged. One process on the whole batch is
// the reference: the average of the ranks' penalties is another function.
TEST_F(DdpGraph, DoubleBackwardIsThatOfTheAverage) {
  DistributedDataParallel model(Stack(), {});
  Stack whole;
  copy_state(*model, *whole);
  const auto penalize = [](auto& stack, const at::Tensor& x) {
    loss_of(stack(x)).backward({}, /*keep_graph=*/true, /*create_graph=*/true);
    std::vector<at::Tensor> gradients;
    for (at::Tensor& parameter : stack->parameters()) {
      if (!parameter.grad().defined()) continue;
      gradients.push_back(parameter.grad());
      parameter.mutable_grad() = at::Tensor();
    }
    at::Tensor penalty = at::zeros({});
    for (const at::Tensor& gradient : gradients) penalty = penalty + gradient.pow(3).sum();
    penalty.backward();
  };
  std::vector<at::Tensor> all(static_cast<std::size_t>(world_size_), inputs());
  for (at::Tensor& part : all) part = at::empty_like(part);
  group_.all_gather(all, inputs());
  for (int step = 0; step < 2; ++step) {
    for (auto* const module : {&*model, &*whole}) module->zero_grad();
    penalize(model, inputs());
    penalize(whole, at::cat(all));
    expect_close_gradients(model.parameters(), whole->parameters());
  }
}

TEST_F(DdpGraph, NoSyncInAnyOrderAlsoFirst) {
  for (const bool static_graph : {false, true}) {
    DistributedDataParallel model(Stack(), {.static_graph = static_graph});
    for (int step = 0; step < 3; ++step) {
      const auto accumulate = [&](auto& stack, auto&& no_sync) {
        {
          [[maybe_unused]] const auto guard = no_sync();
          loss_of(stack(inputs(step))).backward();
          loss_of(stack(inputs(step + 1))).backward();
        }
        loss_of(stack(inputs(step + 2))).backward();
      };
      Stack plain;
      expect_average(
          model, [&] { accumulate(model, [&] { return model.no_sync(); }); }, plain,
          [&] { accumulate(plain, [] { return 0; }); });
    }
  }
}

TEST_F(DdpGraph, AStaticGraphLeavesOutWhatNoRankUses) {
  NEEDS_RANKS(2);
  const ProcessGroup group = group_.new_group(all_ranks());
  DistributedDataParallel model(Stack(), {.process_group = group, .static_graph = true});
  for (int step = 0; step < 2; ++step) loss_of(model(inputs())).backward();
  EXPECT_FALSE(model->unused.grad().defined());
  const std::string message =
      message_of<UsageError>([&] { (loss_of(model(inputs())) + model->unused.sum()).backward(); });
  EXPECT_SAYS(message, "parameter 'unused' got a gradient that no rank had");
}

// Which branch is taken changes from rank to rank and from step to step.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    for (int i = 0; i < 3; ++i) {
      branches.push_back(register_module("branch" + std::to_string(i), Block()));
    }
    scale = register_parameter("scale", at::ones({1}));
  }
  std::vector<std::optional<at::Tensor>> forward(const at::Tensor& x, int branch) {
    if (branch < 0) return {std::nullopt, x * 2};
    return {branches[static_cast<std::size_t>(branch)](x), std::nullopt};
  }
  std::vector<Block> branches;
  at::Tensor scale;
};
TORCH_MODULE(Branches);

TEST_F(DdpGraph, UnusedParametersAreFoundInTheOutputs) {
  for (const bool find : {false, true}) {
    DistributedDataParallel model(Branches(),
                                  {.bucket_cap_mb = 1e-6, .find_unused_parameters = find});
    for (int step = 0; step < 4; ++step) {
      // `scale` comes from no output. The first branch is taken by rank 0 alone, the third by none.
      expect_average_of(
          model,
          [&](auto& branches) {
            const auto outputs = branches(inputs(step), (rank_ + step) % 2);
            (loss_of(*outputs[0]) * branches->scale).sum().backward();
          },
          Branches());
      EXPECT_FALSE(model->branches[2]->first->weight.grad().defined());
    }
  }
}

struct OpaqueImpl : torch::nn::Module {
  struct Output {
    at::Tensor hidden;
  };
  OpaqueImpl() { block = register_module("block", Block()); }
  Output forward(const at::Tensor& x) { return {block(x)}; }
  Block block{nullptr};
};
TORCH_MODULE(Opaque);

TEST_F(DdpGraph, OutputsThatHideTheirTensorsAreRefusedWhereTheyAreLookedInto) {
  DistributedDataParallel plain(Opaque(), {});
  EXPECT_TRUE(plain(inputs()).hidden.defined());
  NEEDS_RANKS(2);
  DistributedDataParallel model(Opaque(), {.find_unused_parameters = true});
  EXPECT_SAYS(message_of<UsageError>([&] { model(inputs()); }),
              "cannot find tensors in the result of forward");
}

}  // namespace
}  // namespace lockstep::testing
