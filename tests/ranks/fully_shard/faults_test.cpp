#include <chrono>
#include <stdexcept>
#include <string>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>

#include "lockstep/optim/optimizers.h"
#include "tests/ranks/fully_shard/fixture.h"

namespace lockstep::testing {
namespace {

/// What is refused, and what an error leaves behind.
class FullyShardFaults : public FullyShardTest {
 protected:
  using Sharded = FullySharded<ShardNetImpl>;

  at::Tensor loss(Sharded& model, int step) const {
    return torch::nn::functional::cross_entropy(model(tokens(step)), targets(step));
  }

  /// The error on each rank where the last rank gives something else.
  template <class Net, class OtherNet>
  std::string refusal(const Net& net, const FullyShardOptions& options, const OtherNet& other_net,
                      FullyShardOptions other_options) const {
    if (rank_ < world_size_ - 1) {
      return message_of<UsageError>([&] { fully_shard(net, options); });
    }
    return message_of<UsageError>([&] { fully_shard(other_net, other_options); });
  }
};

TEST_F(FullyShardFaults, OtherModelsAndOptionsOfARankAreRefusedInOneLine) {
  NEEDS_RANKS(2);
  const std::string culprit = "model of rank " + std::to_string(world_size_ - 1);
  const std::string other_shape = refusal(ShardNet(), by_block(), ShardNet(13, 4), by_block());
  EXPECT_SAYS(other_shape, culprit);
  EXPECT_SAYS(other_shape, "blocks.3");
  FullyShardOptions options = by_block();
  options.reshard_after_forward = false;
  EXPECT_SAYS(refusal(ShardNet(), by_block(), ShardNet(), options), "reshard_after_forward=false");
  options = by_block();
  options.mp_policy.param_dtype = at::kBFloat16;
  EXPECT_SAYS(refusal(ShardNet(), by_block(), ShardNet(), options), "param_dtype=BFloat16");
  options = {.process_group = group_};
  const std::string other_units = refusal(ShardNet(), by_block(), ShardNet(), options);
  EXPECT_SAYS(other_units, "unit 'blocks.0'");
  EXPECT_EQ(other_units.find('\n'), std::string::npos);
}

TEST_F(FullyShardFaults, ModelsThatCannotBeShardedAreRefused) {
  const auto error = [&](const auto& module, const FullyShardOptions& options) {
    return message_of<UsageError>([&] { fully_shard(module, options); });
  };
  const FullyShardOptions plain{.process_group = group_};
  EXPECT_SAYS(error(std::shared_ptr<ShardNetImpl>(), plain), "module is null");
  EXPECT_SAYS(error(torch::nn::Sequential(), plain), "no parameters");
  FullyShardOptions options = plain;
  options.ignored_parameters = {"nothing"};
  EXPECT_SAYS(error(ShardNet(), options), "'nothing'");
  options = plain;
  options.gradient_divide_factor = 0;
  EXPECT_SAYS(error(ShardNet(), options), "gradient_divide_factor=0");
  options = plain;
  options.mp_policy.param_dtype = at::kInt;
  EXPECT_SAYS(error(ShardNet(), options), "mp_policy with Int");
  // Two tensors over one memory would be parted.
  const torch::nn::Linear one(4, 4);
  torch::nn::Linear two(4, 4);
  two->weight.set_data(one->weight.detach());
  EXPECT_SAYS(error(torch::nn::Sequential(one, two), plain), "memory in common");
  torch::nn::Linear complex(2, 2);
  complex->to(at::kComplexFloat);
  EXPECT_SAYS(error(complex, plain), "dense real parameters");
  const ShardNet twice;
  const auto sharded = fully_shard(twice, plain);
  EXPECT_SAYS(error(twice, plain), "sharded once");
}

TEST_F(FullyShardFaults, NumbersThatDoNotDivideTheRanksAreRefused) {
  for (const int number : {-1, 0, world_size_ + 1}) {
    FullyShardOptions options = by_block();
    options.reshard_after_forward = number;
    const std::string message = message_of<UsageError>([&] { fully_shard(ShardNet(), options); });
    EXPECT_SAYS(message, "reshard_after_forward=" + std::to_string(number));
    EXPECT_SAYS(message, world_size_ == 4 ? "choose true, false or one of 2" : "true, false");
  }
}

TEST_F(FullyShardFaults, AUseOutsideOfForwardAndBackwardIsRefused) {
  auto sharded = fully_shard(ShardNet(), by_block());
  const auto& block = sharded.module()->blocks[1]->as<ShardBlock>();
  const std::string message = message_of<UsageError>([&] { block->up->weight.sum(); });
  EXPECT_SAYS(message, "'blocks.1.up.weight'");
  EXPECT_SAYS(message, "aten::sum");
  EXPECT_SAYS(message, "full_state_dict()");
  EXPECT_SAYS(message_of<UsageError>([&] { state_dict(*sharded.module()); }), "fully_shard");
  EXPECT_SAYS(message_of<UsageError>([&] { sharded.module()->to(at::kDouble); }), "fully_shard");
  EXPECT_SAYS(message_of<UsageError>([&] { sharded.module()->forward(tokens(0)); }), "fully_shard");
  const at::Tensor first = sharded(tokens(0));
  EXPECT_SAYS(message_of<UsageError>([&] { block->up->bias.add(1); }), "'blocks.1.up.bias'");
  EXPECT_TRUE(at::equal(sharded(tokens(0)), first));
}

TEST_F(FullyShardFaults, AParameterWithoutItsWrapperIsRefused) {
  ShardNet net;
  { const auto sharded = fully_shard(net, by_block()); }
  EXPECT_SAYS(message_of<UsageError>([&] { net->forward(tokens(0)); }), "FullySharded is gone");
}

TEST_F(FullyShardFaults, ForwardAfterAnExceptionInForwardWorks) {
  auto sharded = fully_shard(ShardNet(), by_block());
  const at::Tensor expected = sharded(tokens(0));
  EXPECT_THROW(sharded.call([&](ShardNetImpl& net) {
    static_cast<void>(net.blocks[0]->as<ShardBlock>()->forward(at::ones({1, 13})));
    throw std::runtime_error("of the module");
  }),
               std::runtime_error);
  const auto& weight = sharded.module()->blocks[0]->as<ShardBlock>()->up->weight;
  EXPECT_EQ(weight.storage().nbytes(), 0U);
  EXPECT_TRUE(at::equal(sharded(tokens(0)), expected));
  loss(sharded, 0).backward();
  for (const auto& [name, piece] : sharded.named_parameters()) {
    EXPECT_EQ(piece.grad().defined(), piece.requires_grad() && name != "empty") << name;
  }
}

TEST_F(FullyShardFaults, BackwardAfterAStepIsRefused) {
  auto sharded = fully_shard(ShardNet(), by_block());
  SGD optimizer(sharded.parameters(), {.lr = 0.1});
  loss(sharded, 0).backward();
  const at::Tensor late = loss(sharded, 1);
  optimizer.step();
  EXPECT_SAYS(message_of<UsageError>([&] { late.backward(); }), "between forward and backward");
  // It was refused before anything was exchanged.
  loss(sharded, 2).backward();
}

TEST_F(FullyShardFaults, BackwardOfAForwardBeforeAStepIsRefusedBehindAnother) {
  auto sharded = fully_shard(ShardNet(), by_block());
  SGD optimizer(sharded.parameters(), {.lr = 0.1});
  loss(sharded, 0).backward();
  const at::Tensor late = loss(sharded, 1);
  optimizer.step();
  {
    const at::NoGradGuard no_grad;
    sharded(tokens(2));
  }
  EXPECT_SAYS(message_of<c10::Error>([&] { late.backward(); }), "modified by an inplace operation");
}

TEST_F(FullyShardFaults, WritesToParametersInForwardAreRefused) {
  auto sharded = fully_shard(torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 4).max_norm(0.1)),
                             {.process_group = group_});
  EXPECT_SAYS(message_of<UsageError>([&] { sharded(at::arange(4)); }),
              "needs parameter 'weight' to write to it");
  const std::string message = message_of<UsageError>([&] {
    sharded.call([](torch::nn::EmbeddingImpl& embedding) {
      const at::NoGradGuard no_grad;
      embedding.weight.clamp_(-1, 1);
    });
  });
  EXPECT_SAYS(message, "aten::clamp_");
}

TEST_F(FullyShardFaults, GradientsOfGradientsAreRefused) {
  auto sharded = fully_shard(ShardNet(), by_block());
  const std::string message = message_of<UsageError>(
      [&] { loss(sharded, 0).backward({}, /*retain_graph=*/true, /*create_graph=*/true); });
  EXPECT_SAYS(message, "create_graph");
  // A backward pass that did not end leaves nothing to build on.
  EXPECT_SAYS(message_of<UsageError>([&] { sharded(tokens(0)); }), "did not end");
  // Such a gradient and its parameter own each other, also in PyTorch.
  for (const at::Tensor& parameter : sharded.module()->parameters()) parameter.mutable_grad().reset();
}

TEST_F(FullyShardFaults, LossesThatCannotHaveAWeightAreRefused) {
  auto sharded = fully_shard(ShardNet(), by_block());
  const auto refusal = [&](const at::Tensor& given, double weight) {
    return message_of<UsageError>([&] { sharded.backward(given, {.weight = weight}); });
  };
  const at::Tensor good = loss(sharded, 0);
  EXPECT_SAYS(refusal(good, -1), "FullySharded::backward on rank");
  EXPECT_SAYS(refusal(good, -1), "weight=-1 is not a number of samples");
  EXPECT_SAYS(refusal({}, 1), "0 elements");
  EXPECT_SAYS(refusal(good.detach(), 1), "depends on nothing");
  EXPECT_SAYS(refusal(good.to(at::kBFloat16), 1), "would round its weight");
  sharded.backward(good, {.weight = 1});
}

TEST_F(FullyShardFaults, SparseGradientsAreRefused) {
  auto sharded = fully_shard(torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 4).sparse(true)),
                             {.process_group = group_});
  const std::string message =
      message_of<UsageError>([&] { sharded(at::arange(4)).sum().backward(); });
  EXPECT_SAYS(message, "'weight' is sparse");
}

/// Uses its layers in the order that it is told.
struct OrderedImpl : torch::nn::Module {
  OrderedImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& values, bool first_first) {
    return first_first ? second(first(values)) : first(second(values));
  }
  torch::nn::Linear first{4, 4};
  torch::nn::Linear second{4, 4};
};
TORCH_MODULE(Ordered);

TEST_F(FullyShardFaults, UnitsInAnotherOrderAreRefusedOnEveryRank) {
  NEEDS_RANKS(2);
  const ProcessGroup group =
      group_of_all({.timeout = std::chrono::seconds(20), .check_calls = true});
  auto sharded = fully_shard(
      Ordered(),
      {.process_group = group, .auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>()});
  const std::string message = message_of<UsageError>([&] {
    sharded(at::ones({2, 4}), /*first_first=*/rank_ < world_size_ - 1);
  });
  EXPECT_SAYS(message, "first");
  EXPECT_SAYS(message, "second");
  group_.barrier();  // Nobody has left with its part of the group while others still use it.
}

}  // namespace
}  // namespace lockstep::testing
