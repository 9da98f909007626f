#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/hooks.h"
#include "lockstep/nn/convert_sync_batchnorm.h"
#include "tests/checkpoint.h"
#include "tests/ranks/ddp_fixture.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

struct WeighedNetImpl : torch::nn::Module {
  WeighedNetImpl() {
    first = register_module("first", torch::nn::Linear(9, 300));
    second = register_module("second", torch::nn::Linear(300, 300));  // large enough to lie alone
    last = register_module("last", torch::nn::Linear(300, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return last(at::tanh(second(at::tanh(first(x))))); }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(WeighedNet);

using WeighedModel = DistributedDataParallel<WeighedNetImpl>;

struct Failure {};

struct Fails : torch::autograd::FunctionPreHook {
  torch::autograd::variable_list operator()(const torch::autograd::variable_list&) override {
    throw Failure();
  }
};

/// Rank r has counts[r % size][m] samples in its micro-batch m.
using Split = std::vector<std::vector<std::int64_t>>;

class WeightedMean : public DdpTest {
 protected:
  static at::Tensor samples(std::int64_t first, std::int64_t count) {
    return at::sin(at::arange(first * 9, (first + count) * 9, at::kFloat)).view({count, 9});
  }
  static at::Tensor loss_of(const at::Tensor& outputs) { return outputs.square().mean(); }
  static at::Tensor loss_per_sample(const at::Tensor& outputs) {
    return outputs.square().mean(/*dim=*/1, /*keepdim=*/true);
  }

  // The gradients of one process on all samples.
  void expect_that_of_one_process(const WeighedModel& model, std::int64_t total) {
    WeighedNet whole;
    copy_state(*model, *whole);
    loss_of(whole(samples(0, total))).backward();
    expect_close_gradients(model->parameters(), whole->parameters());
    Tensors gradients;
    for (const at::Tensor& parameter : model->parameters()) {
      gradients.push_back(parameter.grad().contiguous());
    }
    EXPECT_TRUE(same_bits_everywhere(gradients));
  }

  // Trains one step in micro-batches, exchanged with the last.
  void step(WeighedModel& model, const Split& split) {
    std::int64_t first = 0;
    for (int rank = 0; rank < world_size_; ++rank) {
      const auto& counts = split[static_cast<std::size_t>(rank) % split.size()];
      for (std::size_t micro = 0; micro < counts.size(); ++micro) {
        if (rank == rank_) {
          const auto backward = [&] {
            const at::Tensor loss = loss_of(model(samples(first, counts[micro])));
            model.backward(loss, {.weight = static_cast<double>(counts[micro])});
          };
          if (micro + 1 < counts.size()) {
            const auto no_sync = model.no_sync();
            backward();
          } else {
            backward();
          }
        }
        first += counts[micro];
      }
    }
    total_ = first;
  }

  std::int64_t total_ = 0;
};

TEST_F(WeightedMean, EqualsOneProcessHoweverTheBatchIsSplit) {
  const Split splits[] = {
      {{4}, {4}},                   // evenly
      {{1}, {7}, {2}},              // one, odd, even
      {{0}, {5}},                   // none on some ranks
      {{3, 1, 2}, {1, 1, 9}},       // in micro-batches
      {{0, 0, 2}, {4, 0, 0}, {1}},  // of which some are empty, and in other numbers
  };
  const DistributedDataParallelOptions all_options[] = {
      {}, {.bucket_cap_mb = 1e-6}, {.gradient_as_bucket_view = false}, {}};
  for (std::size_t i = 0; i < std::size(all_options); ++i) {
    for (const Split& split : splits) {
      DistributedDataParallelOptions options = all_options[i];
      if (i == 3) options.comm_hook = std::make_shared<AllReduceHook>();
      WeighedModel model(WeighedNet(), options);
      for (int pass = 0; pass < 2; ++pass) {
        model->zero_grad();
        step(model, split);
        if (total_ > 0) expect_that_of_one_process(model, total_);
      }
    }
  }
}

// In float16 70,000 is infinite, and 4097 is neither a float16 nor a bfloat16.
// SyncBatchNorm mixes the gradients of all ranks before they arrive at parameters below it.
TEST_F(WeightedMean, OfALossOf16BitsReachesLayersThatExchange) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const auto gradient_of = [&](at::ScalarType of_loss) {
      torch::manual_seed(3);
      torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4),
                                torch::nn::Linear(4, 1));
      convert_sync_batchnorm(*net);
      DistributedDataParallel model(net);
      const std::int64_t samples = 16 * (rank_ + 1);
      const at::Tensor inputs = at::arange(samples * 3, at::kFloat).mul(rank_ + 1).sin();
      const at::Tensor loss = model(inputs.view({samples, 3})).square().mean();
      const double weight = rank_ == 2 ? 0 : static_cast<double>(samples);
      model.backward(loss.to(of_loss), {.weight = weight});
      return net->parameters()[0].grad().clone();
    };
    const at::Tensor expected = gradient_of(at::kFloat);
    EXPECT_TRUE(at::allclose(gradient_of(dtype), expected, 1e-4, 1e-5));
  }
}

TEST_F(WeightedMean, OfALossOf16BitsRoundsNoWeight) {
  const double weights[] = {70'000, 4097, 3, 1};
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    for (const std::int64_t width : {4, 400}) {  // in a bucket, and alone where memory is shared
      for (const bool with_hook : {false, true}) {
        torch::nn::Linear module(width, width);
        module->to(dtype);
        DistributedDataParallel model(
            module, {.comm_hook = with_hook ? std::make_shared<AllReduceHook>() : nullptr});
        for (int step = 0; step < 3; ++step) {
          model->zero_grad();
          // The gradient of a pass is a number of its own, so that only weights matter.
          const auto weight = [&](int rank, int pass) {
            return weights[(rank + step) % 4] * (pass == 1 ? 1 : 0.7);
          };
          double sum = 0;
          double total = 0;
          for (int rank = 0; rank < world_size_; ++rank) {
            for (const int pass : {1, 2}) {
              sum += (rank + pass) * weight(rank, pass);
              total += weight(rank, pass);
            }
          }
          for (const int pass : {1, 2}) {
            const auto no_sync = model.no_sync(pass == 1);
            const at::Tensor outputs = model(at::full({2, width}, rank_ + pass).to(dtype));
            model.backward(outputs.sum(1).mean(), {.weight = weight(rank_, pass)});
          }
          const double rounding = dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
          EXPECT_NEAR(model->weight.grad()[0][0].item<double>(), sum / total,
                      4 * rounding * sum / total);
          EXPECT_TRUE(same_bits_everywhere({model->weight.grad().contiguous()}));
        }
      }
    }
  }
}

// Flags say which gradients there are, and are scaled as the gradients in their bucket.
TEST_F(WeightedMean, OfHugeWeightsReachesRanksWithoutAGradient) {
  struct OptionalTermImpl : torch::nn::Module {
    OptionalTermImpl() {
      used = register_parameter("used", at::ones({3}));
      first = register_parameter("first", at::ones({3}));
    }
    at::Tensor forward(bool with_first) {
      return with_first ? used.mean() + first.mean() : used.mean();
    }
    at::Tensor used;
    at::Tensor first;
  };
  constexpr double kWeight = 1e9;
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    const auto module = std::make_shared<OptionalTermImpl>();
    module->to(dtype);
    DistributedDataParallel model(module, {});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      model.backward(model(rank_ == 0).to(at::kFloat) / kWeight, {.weight = kWeight});
      ASSERT_TRUE(model->first.grad().defined());
      EXPECT_TRUE(same_bits_everywhere({model->first.grad(), model->used.grad()}));
    }
  }
}

TEST_F(WeightedMean, OfNoWeightAtAllIsZero) {
  WeighedModel model(WeighedNet(), {});
  model.backward(loss_of(model(samples(0, 3))), {.weight = 0});
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_TRUE(at::equal(parameter.grad(), at::zeros_like(parameter)));
  }
}

TEST_F(WeightedMean, NormIsThatOfTheMean) {
  WeighedModel model(WeighedNet(), {.gradient_norm = true});
  step(model, {{2}, {5}});
  double squares = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    squares += parameter.grad().to(at::kDouble).square().sum().item<double>();
  }
  EXPECT_NEAR(model.gradient_norm(), std::sqrt(squares), 1e-6 * std::sqrt(squares));
}

TEST_F(WeightedMean, PassesWithAndWithoutWeightDoNotMix) {
  {
    WeighedModel model(WeighedNet(), {});
    {
      const auto no_sync = model.no_sync();
      model.backward(loss_of(model(samples(0, 3))), {.weight = 3});
    }
    const std::string message =
        message_of<UsageError>([&] { loss_of(model(samples(0, 3))).backward(); });
    EXPECT_SAYS(message, "some of the backward passes between two exchanges have a weight");
  }
  WeighedModel model(WeighedNet(), {});
  {
    const auto no_sync = model.no_sync();
    loss_of(model(samples(0, 3))).backward();
  }
  const std::string message =
      message_of<UsageError>([&] { model.backward(loss_of(model(samples(0, 3)))); });
  EXPECT_SAYS(message, "call model.backward(loss, {.weight = n}) for all");
}

TEST_F(WeightedMean, GradientsThatWereGivenUpDoNotCount) {
  WeighedModel model(WeighedNet(), {});
  {
    const auto no_sync = model.no_sync();
    model.backward(loss_of(model(samples(50, 3))), {.weight = 30});
  }
  model->zero_grad();
  step(model, {{3}, {1}});
  expect_that_of_one_process(model, total_);
}

TEST_F(WeightedMean, GradientsThatWereSetToZeroDoNotCount) {
  WeighedModel model(WeighedNet(), {});
  for (int pass = 0; pass < 2; ++pass) {
    {
      const auto no_sync = model.no_sync();
      model.backward(loss_of(model(samples(50, 3))), {.weight = 30});
    }
    model->zero_grad(/*set_to_none=*/false);
    step(model, {{3, 2}, {1}});
    expect_that_of_one_process(model, total_);
    model->zero_grad(/*set_to_none=*/false);
  }
}

TEST_F(WeightedMean, GradientsThatWereReplacedByZerosDoNotCount) {
  WeighedModel model(WeighedNet(), {});
  {
    const auto no_sync = model.no_sync();
    model.backward(loss_of(model(samples(50, 3))), {.weight = 30});
  }
  for (const at::Tensor& parameter : model.parameters()) {
    parameter.mutable_grad() = at::zeros(parameter.sizes());
  }
  step(model, {{3}, {1}});
  expect_that_of_one_process(model, total_);
}

TEST_F(WeightedMean, APassThatReachedNothingIsGivenUpByTheWrapper) {
  WeighedModel model(WeighedNet(), {});
  {
    const auto no_sync = model.no_sync();
    model.backward(at::ones({3}).requires_grad_().square().mean(), {.weight = 6});
  }
  model.zero_grad();
  model.backward(loss_of(model(samples(2 * rank_, 2))), {.weight = 2});
  expect_that_of_one_process(model, 2 * world_size_);
}

// What a loss of other tensors, or one times zero, leaves looks like what zero_grad() leaves.
TEST_F(WeightedMean, PassesThatLeaveNothingOrZerosCount) {
  for (const bool reaches_nothing : {true, false}) {
    WeighedModel model(WeighedNet(), {});
    for (int pass = 0; pass < 2; ++pass) {
      model->zero_grad();
      {
        const auto no_sync = model.no_sync();
        const at::Tensor outputs = model(samples(0, 2));
        const at::Tensor other = at::ones({3}).requires_grad_();
        model.backward(reaches_nothing ? other.square().mean() : loss_of(outputs) * 0,
                       {.weight = 6});
      }
      model.backward(loss_of(model(samples(2 * rank_, 2))), {.weight = 2});
      WeighedNet whole;
      copy_state(*model, *whole);
      // 2 of 8 samples of each rank have a gradient.
      (loss_of(whole(samples(0, 2 * world_size_))) * 0.25).backward();
      expect_close_gradients(model->parameters(), whole->parameters());
    }
  }
}

TEST_F(WeightedMean, GradientsOfAnotherModelThatWereGivenUpAfterItsForwardDoNotCount) {
  WeighedModel first(WeighedNet(), {});
  WeighedModel second(WeighedNet(), {});
  {
    const auto no_sync = first.no_sync();
    const auto nor_second = second.no_sync();
    first.backward(loss_of(first(samples(50, 3))) + loss_of(second(samples(50, 3))),
                   {.weight = 30});
  }
  const std::int64_t count = rank_ + 1;
  const at::Tensor inputs = samples(rank_ * count / 2, count);
  const at::Tensor loss = loss_of(first(inputs)) + loss_of(second(inputs));
  for (auto* const model : {&first, &second}) (*model)->zero_grad();
  first.backward(loss, {.weight = static_cast<double>(count)});
  const std::int64_t total = world_size_ * (world_size_ + 1) / 2;
  expect_that_of_one_process(first, total);
  expect_that_of_one_process(second, total);
}

TEST_F(WeightedMean, APassThatFailsBeforeItsFirstGradientDoesNotCount) {
  for (const bool exchanges : {true, false}) {
    SCOPED_TRACE(exchanges);
    WeighedModel model(WeighedNet(), {});
    for (int pass = 0; pass < 2; ++pass) {
      {
        const auto no_sync = model.no_sync(!exchanges);
        const at::Tensor loss = loss_of(model(samples(50, 3)));
        loss.grad_fn()->add_pre_hook(std::make_unique<Fails>());
        EXPECT_THROW(model.backward(loss, {.weight = 30}), Failure);
      }
      step(model, {{3}, {1}});
      expect_that_of_one_process(model, total_);
      model->zero_grad();
    }
  }
}

TEST_F(WeightedMean, OfAWrapperThatIsRecomputedInBackward) {
  WeighedModel model(WeighedNet(), {});
  const Part whole_model = [&](const at::Tensor& x) { return model(x); };
  for (int pass = 0; pass < 2; ++pass) {
    model->zero_grad();
    const at::Tensor inputs = samples(2 * rank_, 2).requires_grad_();
    model.backward(loss_of(Checkpoint::apply(inputs, whole_model)), {.weight = 2});
    expect_that_of_one_process(model, 2 * world_size_);
  }
}

// Exchanges of the one that is behind the other must come first on all ranks.
TEST_F(WeightedMean, OfTwoModelsInOneLossOfWhichRanksReachDifferentParameters) {
  struct TwoImpl : torch::nn::Module {
    TwoImpl() {
      first = register_parameter("first", at::eye(4));
      second = register_parameter("second", at::eye(4));
    }
    at::Tensor forward(const at::Tensor& x, bool takes_second) {
      return takes_second ? x.mm(first).mm(second) : x.mm(first);
    }
    at::Tensor first;
    at::Tensor second;
  };
  const auto input_of = [](int rank) { return at::full({2, 4}, rank + 1.0F); };
  DistributedDataParallel<TwoImpl> generator(
      std::make_shared<TwoImpl>(), {.bucket_cap_mb = 1e-5, .find_unused_parameters = true});
  DistributedDataParallel<TwoImpl> critic(std::make_shared<TwoImpl>(),
                                          {.bucket_cap_mb = 1e-5, .find_unused_parameters = true});
  for (int pass = 0; pass < 3; ++pass) {
    const auto takes_second = [&](int rank) { return pass == 0 || rank > 0; };
    for (auto* const model : {&generator, &critic}) (*model)->zero_grad();
    const at::Tensor made = generator(input_of(rank_), takes_second(rank_));
    generator.backward(critic(made, true).mean(), {.weight = 2});
    TwoImpl alone[2];
    at::Tensor sum = at::zeros({});
    for (int rank = 0; rank < world_size_; ++rank) {
      const at::Tensor all_made = alone[0].forward(input_of(rank), takes_second(rank));
      sum = sum + alone[1].forward(all_made, true).mean();
    }
    (sum / world_size_).backward();
    expect_close_gradients(critic->parameters(), alone[1].parameters());
    if (world_size_ > 1) expect_close_gradients(generator->parameters(), alone[0].parameters());
  }
}

// Each over a group of its own, so that neither waits for the other's ranks.
TEST_F(WeightedMean, OfTwoModelsThatThreadsOfTheirOwnTrain) {
  std::vector<int> ranks(world_size_);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<std::unique_ptr<WeighedModel>> models;
  for (int i = 0; i < 2; ++i) {
    models.push_back(std::make_unique<WeighedModel>(
        WeighedNet(), DistributedDataParallelOptions{.process_group = group_.new_group(ranks)}));
  }
  const auto train = [&](int number) {
    WeighedModel& model = *models[number];
    for (int pass = 0; pass < 40; ++pass) {
      model->zero_grad();
      model.backward(loss_of(model(samples(2 * rank_, 2))), {.weight = 2});
    }
  };
  std::thread other(train, 1);
  train(0);
  other.join();
  for (const auto& model : models) expect_that_of_one_process(*model, 2 * world_size_);
}

TEST_F(WeightedMean, OfWeightZeroCountsNothingEvenWhereTheLossIsNoNumber) {
  WeighedModel model(WeighedNet(), {});
  for (int pass = 0; pass < 2;
       ++pass) {  // the first is exchanged at its end, the second on the way
    model->zero_grad();
    const bool is_masked = rank_ == 0;
    const std::int64_t first = is_masked ? 0 : 4 * (rank_ - 1);
    const at::Tensor mask = at::full({4, 1}, is_masked ? 0.0 : 1.0);
    const at::Tensor loss = (loss_per_sample(model(samples(first, 4))) * mask).sum() / mask.sum();
    model.backward(loss, {.weight = mask.sum().item<double>()});
    if (world_size_ == 1) {
      EXPECT_EQ(model->first->weight.grad().count_nonzero().item<int>(), 0);
    } else {
      expect_that_of_one_process(model, 4 * (world_size_ - 1));
    }
  }
}

TEST_F(WeightedMean, IsThatOfEveryModelInTheLoss) {
  WeighedModel first(WeighedNet(), {});
  WeighedModel second(WeighedNet(), {});
  for (int pass = 0; pass < 2; ++pass) {
    first->zero_grad();
    second->zero_grad();
    // Rank r has r + 1 samples, behind those of the ranks before it.
    const std::int64_t count = rank_ + 1;
    const at::Tensor inputs = samples(rank_ * count / 2, count);
    first.backward(loss_of(first(inputs)) + loss_of(second(inputs)),
                   {.weight = static_cast<double>(count)});
    const std::int64_t total = world_size_ * (world_size_ + 1) / 2;
    expect_that_of_one_process(first, total);
    expect_that_of_one_process(second, total);
  }
}

TEST_F(WeightedMean, APassThatReachesNoParameterTakesPart) {
  WeighedModel model(WeighedNet(), {});
  for (int pass = 0; pass < 2; ++pass) {
    model->zero_grad();
    if (rank_ == world_size_ - 1) {
      const at::Tensor other = at::ones({3}).requires_grad_();
      model(samples(0, 1));
      model.backward(other.square().mean(), {.weight = 0});
    } else {
      model.backward(loss_of(model(samples(2 * rank_, 2))), {.weight = 2});
    }
    if (world_size_ > 1) expect_that_of_one_process(model, 2 * (world_size_ - 1));
  }
}

TEST_F(WeightedMean, OfAGraphThatIsKeptCanBeTakenTwice) {
  WeighedModel model(WeighedNet(), {});
  const at::Tensor loss = loss_of(model(samples(3 * rank_, 3)));
  {
    const auto no_sync = model.no_sync();
    model.backward(loss, {.weight = 3, .retain_graph = true});
  }
  model.backward(loss, {.weight = 3});
  expect_that_of_one_process(model, 3 * world_size_);
}

TEST_F(WeightedMean, WeightsAndLossesThatAreNoneAreRefused) {
  WeighedModel model(WeighedNet(), {});
  const at::Tensor outputs = model(samples(0, 3));
  for (const double weight : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_SAYS(
        message_of<UsageError>([&] { model.backward(loss_of(outputs), {.weight = weight}); }),
        "is not a number of samples");
  }
  EXPECT_SAYS(message_of<UsageError>([&] { model.backward(outputs); }), "the loss has 6 elements");
  EXPECT_SAYS(message_of<UsageError>([&] { model.backward(loss_of(outputs).detach()); }),
              "the loss depends on nothing that requires a gradient");
}

}  // namespace
}  // namespace lockstep::testing
