// Units of fully_shard: which there are, and that ranks may use different parameters of them.
#include <string>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "tests/ranks/fully_shard/fixture.h"

namespace lockstep::testing {
namespace {

using FullyShardUnits = FullyShard;

TEST_F(FullyShardUnits, MakesUnitsOfTheModulesThatThePolicyChooses) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(fully_shard(ShardNet(), {.process_group = group_}).unit_names(), Names{""});
  EXPECT_EQ(fully_shard(ShardNet(), by_block()).unit_names(),
            (Names{"", "blocks.0", "blocks.1", "blocks.2"}));
  // Nested units, and one without parameters of its own.
  const AutoWrapPolicy nested = [](const std::string& name, const torch::nn::Module&) {
    return name == "blocks" || name == "blocks.1" || name == "blocks.1.up";
  };
  EXPECT_EQ(
      fully_shard(ShardNet(), {.process_group = group_, .auto_wrap_policy = nested}).unit_names(),
      (Names{"", "blocks", "blocks.1", "blocks.1.up"}));
}

TEST_F(FullyShardUnits, AveragesGradientsWhateverTheUnits) {
  const AutoWrapPolicy policies[] = {
      {},
      module_wrap_policy<ShardBlockImpl>(),
      module_wrap_policy<torch::nn::LinearImpl, torch::nn::EmbeddingImpl>(),
      [](const std::string& name, const torch::nn::Module&) {
        return name == "blocks" || name == "blocks.1" || name == "blocks.1.up";
      },
      [](const std::string&, const torch::nn::Module&) { return true; }};
  for (const AutoWrapPolicy& policy : policies) {
    auto [plain, sharded] = make_pair({.process_group = group_, .auto_wrap_policy = policy});
    DistributedDataParallel replica(plain, {.process_group = group_});
    for (int step = 0; step < 2; ++step) {
      backward(sharded, step);
      backward(replica, step);
      expect_same_gradients(sharded, replica);
      sharded.zero_grad();
      replica.zero_grad();
    }
  }
}

/// Uses one of its layers, or both, or none, by rank.
struct ChoosingImpl : torch::nn::Module {
  ChoosingImpl() : first(5, 5), second(5, 5), last(5, 2) {
    register_module("first", first);
    register_module("second", second);
    register_module("never", never);
    register_module("last", last);
  }
  at::Tensor forward(at::Tensor values, int choice) {
    if (choice & 1) values = first(values);
    if (choice & 2) values = second(values);
    return last(values);
  }
  torch::nn::Linear first;
  torch::nn::Linear second;
  torch::nn::Linear never{5, 5};
  torch::nn::Linear last;
};
TORCH_MODULE(Choosing);

TEST_F(FullyShardUnits, LetsRanksLeaveOutDifferentParametersOfAUnit) {
  Choosing plain;
  auto sharded = fully_shard(Choosing(), {.process_group = group_});
  copy_values(sharded, *plain);
  DistributedDataParallel replica(plain, {.process_group = group_});
  for (int step = 0; step < 6; ++step) {
    sharded.zero_grad();
    replica.zero_grad();
    const at::Tensor inputs = at::arange(10, at::kFloat).view({2, 5}) + rank_;
    const int choice = (step + rank_) % 4;
    sharded(inputs, choice).sum().backward();
    replica(inputs, choice).sum().backward();
    for (const auto& [name, piece] : sharded.named_parameters()) {
      const at::Tensor expected = replica->named_parameters()[name].grad();
      ASSERT_EQ(piece.grad().defined(), expected.defined()) << name << " in step " << step;
      if (!expected.defined()) continue;
      EXPECT_TRUE(at::allclose(whole_of(piece.grad(), expected.numel()), expected.view(-1)))
          << name;
    }
  }
}

/// A unit of which a rank uses the bias alone, whose gradient needs no values, or all.
struct PartImpl : torch::nn::Module {
  PartImpl() {
    register_module("linear", linear);
    bias = register_parameter("bias", at::ones({5}));
  }
  at::Tensor forward(const at::Tensor& values, bool bias_alone) {
    return bias_alone ? values + bias : linear(values) + bias;
  }
  torch::nn::Linear linear{5, 5};
  at::Tensor bias;
};
TORCH_MODULE(Part);

struct PartsImpl : torch::nn::Module {
  PartsImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& values, bool bias_alone) {
    return second(first(at::tanh(values), bias_alone), !bias_alone).square();
  }
  Part first;
  Part second;
};
TORCH_MODULE(Parts);

TEST_F(FullyShardUnits, LetsRanksNeedAUnitInBackwardThatOthersDoNot) {
  for (const bool reshards : {true, false}) {
    Parts plain;
    auto sharded = fully_shard(Parts(), {.process_group = group_,
                                         .auto_wrap_policy = module_wrap_policy<PartImpl>(),
                                         .reshard_after_forward = reshards});
    copy_values(sharded, *plain);
    DistributedDataParallel replica(plain, {.process_group = group_});
    for (int step = 0; step < 4; ++step) {
      sharded.zero_grad();
      replica.zero_grad();
      const at::Tensor inputs = at::arange(10, at::kFloat).view({2, 5}) + rank_;
      const bool bias_alone = (step + rank_) % 2 == 0;
      sharded(inputs, bias_alone).sum().backward();
      replica(inputs, bias_alone).sum().backward();
      for (const auto& [name, piece] : sharded.named_parameters()) {
        const at::Tensor expected = replica->named_parameters()[name].grad();
        ASSERT_EQ(piece.grad().defined(), expected.defined()) << name << " in step " << step;
        if (!expected.defined()) continue;
        EXPECT_TRUE(at::allclose(whole_of(piece.grad(), expected.numel()), expected.view(-1)))
            << name;
      }
    }
  }
}

/// Layers, between which a rank may use a parameter of the unit that contains them.
struct BetweenImpl : torch::nn::Module {
  BetweenImpl() {
    scale = register_parameter("scale", at::ones({5}));
    bias = register_parameter("bias", at::ones({5}));
    none = register_parameter("none", at::empty({0}), /*requires_grad=*/false);
    register_module("layers", layers);
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(5, 5));
  }
  at::Tensor forward(const at::Tensor& inputs, bool uses_bias) {
    at::Tensor values = inputs * scale;
    for (const auto& layer : *layers) {
      values = at::tanh(layer->as<torch::nn::Linear>()->forward(values));
      if (uses_bias) values = values + bias;
    }
    return values;
  }
  at::Tensor scale;
  at::Tensor bias;
  at::Tensor none;
  torch::nn::ModuleList layers;
};
TORCH_MODULE(Between);

TEST_F(FullyShardUnits, LetsRanksUseAnOuterUnitBetweenThoseThatItContains) {
  Between plain;
  auto sharded = fully_shard(
      Between(),
      {.process_group = group_, .auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>()});
  copy_values(sharded, *plain);
  DistributedDataParallel replica(plain, {.process_group = group_});
  for (int step = 0; step < 4; ++step) {
    sharded.zero_grad();
    replica.zero_grad();
    const at::Tensor inputs = at::arange(10, at::kFloat).view({2, 5}) + rank_;
    const bool uses_bias = rank_ % 2 == 0;
    sharded(inputs, uses_bias).sum().backward();
    replica(inputs, uses_bias).sum().backward();
    for (const auto& [name, piece] : sharded.named_parameters()) {
      const at::Tensor expected = replica->named_parameters()[name].grad();
      ASSERT_EQ(piece.grad().defined(), expected.defined()) << name << " in step " << step;
      if (!expected.defined()) continue;
      EXPECT_TRUE(at::allclose(whole_of(piece.grad(), expected.numel()), expected.view(-1)))
          << name << " in step " << step;
    }
  }
}

/// Two units of one size, of which the outer one has a parameter that comes behind the inner one.
struct InsideImpl : torch::nn::Module {
  InsideImpl() {
    weight = register_parameter("weight", at::rand({4, 4}));
    scale = register_parameter("scale", at::rand({1}));
  }
  at::Tensor forward(const at::Tensor& values) { return at::linear(values, weight) * scale; }
  at::Tensor weight;
  at::Tensor scale;
};
TORCH_MODULE(Inside);

struct AroundImpl : torch::nn::Module {
  AroundImpl() {
    weight = register_parameter("weight", at::rand({4, 4}));
    gain = register_parameter("gain", at::rand({1}));
    register_module("inside", inside);
  }
  at::Tensor forward(const at::Tensor& values, bool uses_gain) {
    const at::Tensor inner = inside(at::linear(values, weight));
    return uses_gain ? inner * gain : inner;
  }
  at::Tensor weight;
  at::Tensor gain;
  Inside inside;
};
TORCH_MODULE(Around);

struct AroundAndLastImpl : torch::nn::Module {
  AroundAndLastImpl() {
    register_module("around", around);
    register_module("last", last);
  }
  at::Tensor forward(const at::Tensor& values, bool uses_gain) {
    return last(around(values, uses_gain));
  }
  Around around;
  torch::nn::Linear last{4, 4};
};
TORCH_MODULE(AroundAndLast);

struct FullyShardBehindInnerUnit : FullyShardUnits {
  /// A step in which rank 0 alone uses the gain, in each case that frees what forward has gathered.
  template <class Holder>
  void expect_averages(const ProcessGroup& group, ReshardAfterForward reshard,
                       const AutoWrapPolicy& policy) const {
    Holder plain;
    auto sharded = fully_shard(
        Holder(),
        {.process_group = group, .auto_wrap_policy = policy, .reshard_after_forward = reshard});
    copy_values(sharded, *plain);
    const bool uses_gain = rank_ == 0;
    for (const bool evaluates : {false, true}) {
      for (const int passes : {1, 2}) {
        SCOPED_TRACE(::testing::Message() << "evaluates " << evaluates << ", passes " << passes);
        sharded.zero_grad();
        plain->zero_grad();
        const at::Tensor inputs = at::arange(8, at::kFloat).view({2, 4}) + rank_;
        const at::Tensor ours = sharded(inputs, uses_gain).sum();
        const at::Tensor theirs = plain(inputs, uses_gain).sum();
        if (evaluates) {
          const at::NoGradGuard no_grad;
          sharded(inputs, uses_gain);
        }
        for (int pass = 1; pass <= passes; ++pass) {
          ours.backward({}, /*retain_graph=*/pass < passes);
          theirs.backward({}, /*retain_graph=*/pass < passes);
        }
        const auto whole = plain->named_parameters();
        for (const auto& [name, piece] : sharded.named_parameters()) {
          const at::Tensor& own = whole[name].grad();
          const at::Tensor average = own.defined() ? own.clone() : at::zeros_like(whole[name]);
          group_.all_reduce(average, {.op = ReduceOp::kAvg});
          ASSERT_TRUE(piece.grad().defined()) << name;
          EXPECT_TRUE(at::allclose(whole_of(piece.grad(), average.numel()), average.view(-1)))
              << name;
        }
      }
    }
  }

  void expect_averages(const ProcessGroup& group, ReshardAfterForward reshard) const {
    expect_averages<Around>(group, reshard, module_wrap_policy<InsideImpl>());
    expect_averages<AroundAndLast>(
        group, reshard, module_wrap_policy<AroundImpl, InsideImpl, torch::nn::LinearImpl>());
  }
};

TEST_F(FullyShardBehindInnerUnit, LetsOneRankUseAParameterOfTheOuterUnit) {
  expect_averages(group_, true);
  expect_averages(group_, false);
  if (world_size_ == 4) expect_averages(group_, 2);
}

// There ranks whose exchanges differ would add up each other's units.
TEST_F(FullyShardBehindInnerUnit, ExchangesInOneOrderWhereNothingComparesTheCalls) {
  expect_averages(group_of_all({.check_calls = false}), true);
}

TEST_F(FullyShardUnits, ACallThatUsesNoParameterWaitsForNobody) {
  auto sharded = fully_shard(Between(), {.process_group = group_});
  sharded(at::ones({2, 5}), true).sum().backward();
  if (rank_ == 0) {
    EXPECT_EQ(sharded.call([](BetweenImpl& net) { return net.layers->size(); }), 4U);
  }
  EXPECT_EQ(sharded(at::ones({2, 5}), true).sizes(), at::IntArrayRef({2, 5}));
}

/// Gives parameters of two units to one operator.
struct PairedImpl : torch::nn::Module {
  PairedImpl() {
    register_module("left", left);
    register_module("right", right);
  }
  at::Tensor forward(const at::Tensor& values) {
    const at::Tensor product = right->weight.matmul(left->weight);
    return values.matmul(product) + at::cat({left->weight, right->weight}).square().sum();
  }
  torch::nn::Linear left{torch::nn::LinearOptions(5, 5).bias(false)};
  torch::nn::Linear right{torch::nn::LinearOptions(5, 5).bias(false)};
};
TORCH_MODULE(Paired);

TEST_F(FullyShardUnits, GivesOneOperatorParametersOfSeveralUnits) {
  Paired plain;
  auto sharded = fully_shard(
      Paired(),
      {.process_group = group_, .auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>()});
  copy_values(sharded, *plain);
  DistributedDataParallel replica(plain, {.process_group = group_});
  for (int step = 0; step < 2; ++step) {
    sharded.zero_grad();
    replica.zero_grad();
    const at::Tensor inputs = at::arange(10, at::kFloat).view({2, 5}) + rank_ + step;
    const at::Tensor ours = sharded(inputs);
    const at::Tensor theirs = replica(inputs);
    EXPECT_TRUE(at::equal(ours, theirs));
    ours.sum().backward();
    theirs.sum().backward();
    for (const auto& [name, piece] : sharded.named_parameters()) {
      const at::Tensor& expected = replica->named_parameters()[name].grad();
      EXPECT_TRUE(at::allclose(whole_of(piece.grad(), expected.numel()), expected.view(-1)))
          << name;
    }
  }
}

TEST_F(FullyShardUnits, LeavesUnitsAloneThatNoRankUses) {
  Choosing plain;
  auto sharded = fully_shard(
      Choosing(),
      {.process_group = group_, .auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>()});
  copy_values(sharded, *plain);
  DistributedDataParallel replica(plain, {.process_group = group_});
  for (const int choice : {1, 2, 3, 0}) {
    sharded.zero_grad();
    replica.zero_grad();
    const at::Tensor inputs = at::arange(10, at::kFloat).view({2, 5}) + rank_;
    sharded(inputs, choice).sum().backward();
    replica(inputs, choice).sum().backward();
    for (const auto& [name, piece] : sharded.named_parameters()) {
      ASSERT_EQ(piece.grad().defined(), replica->named_parameters()[name].grad().defined()) << name;
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
