// SyncBatchNorm beside LibTorch's own batch norm of one process on the batches of all ranks.
#include "lockstep/nn/sync_batch_norm.h"

#include <memory>
#include <numeric>
#include <string>

#include <ATen/ATen.h>
#include <ATen/ops/batch_norm_native.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/hooks.h"
#include "lockstep/nn/convert_sync_batchnorm.h"
#include "lockstep/snapshot/state_dict.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

using torch::nn::BatchNormOptions;
using BatchSizes = std::vector<std::int64_t>;

struct ConvolutionAndNormsImpl : torch::nn::Module {
  ConvolutionAndNormsImpl() {
    conv = register_module("conv", torch::nn::Conv2d(2, 37, 3));
    norm = register_module("norm", torch::nn::BatchNorm2d(37));
    linear = register_module("linear", torch::nn::Linear(37 * 9, 11));
    last_norm = register_module("last_norm", torch::nn::BatchNorm1d(11));
  }
  at::Tensor forward(const at::Tensor& x) {
    return last_norm(linear(at::relu(norm(conv(x))).flatten(1)));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d last_norm{nullptr};
};
TORCH_MODULE(ConvolutionAndNorms);

class SyncedBatchNorm : public Conformance {
 protected:
  // Batches of all sizes: the same everywhere, different, none on the last rank, all on the last.
  std::vector<BatchSizes> batch_sizes() const {
    BatchSizes even(world_size_, 4);
    BatchSizes uneven(world_size_);
    std::iota(uneven.begin(), uneven.end(), 2);
    BatchSizes none_on_last = uneven;
    BatchSizes all_on_last(world_size_, 0);
    all_on_last.back() = 5;
    if (world_size_ > 1) none_on_last.back() = 0;
    return {even, uneven, none_on_last, all_on_last};
  }

  static at::Tensor values(const BatchSizes& sizes, std::vector<std::int64_t> shape, double seed,
                           at::ScalarType dtype) {
    shape.insert(shape.begin(), std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}));
    const auto numel =
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    return at::sin(at::arange(numel, at::kDouble) * (1.3 + seed)).add_(seed).view(shape).to(dtype);
  }

  // This rank's part of a tensor of all batches.
  at::Tensor part(const at::Tensor& whole, const BatchSizes& sizes) const {
    const auto first = std::accumulate(sizes.begin(), sizes.begin() + rank_, std::int64_t{0});
    return whole.detach().narrow(0, first, sizes[rank_]).clone(at::MemoryFormat::Preserve);
  }

  at::Tensor sum_over_ranks(const at::Tensor& tensor) const {
    const at::Tensor sum = tensor.detach().clone().to(at::kDouble);
    group_.all_reduce(sum);
    return sum.to(tensor.scalar_type());
  }

  static void expect_near(const at::Tensor& ours, const at::Tensor& whole, double tolerance,
                          const char* what = "") {
    EXPECT_EQ(ours.dtype(), whole.dtype()) << what;
    EXPECT_TRUE(at::allclose(ours, whole, tolerance, tolerance))
        << what << " by " << (ours - whole).abs().max().item<double>();
  }

  // A step of `ours` on this rank's part of x, and of `alone` on all of it.
  template <class Ours, class Alone>
  void expect_same_step(Ours& ours, Alone& alone, const at::Tensor& x, const BatchSizes& sizes,
                        double tolerance) const {
    const at::Tensor whole = x.detach().clone(at::MemoryFormat::Preserve).requires_grad_();
    const at::Tensor mine = part(x, sizes).requires_grad_();
    const at::Tensor factor =
        at::cos(at::arange(x.numel(), at::kDouble)).view(x.sizes()).to(x.scalar_type());
    const at::Tensor expected = alone->forward(whole);
    (expected * factor).sum().backward();
    const at::Tensor output = ours->forward(mine);
    (output * part(factor, sizes)).sum().backward();
    expect_near(output, part(expected, sizes), tolerance, "output");
    EXPECT_EQ(output.suggest_memory_format(), mine.suggest_memory_format());
    expect_near(mine.grad(), part(whole.grad(), sizes), tolerance, "gradient of the input");
    if (alone->weight.defined()) {
      const double of_sums = tolerance * 10;  // their terms cancel
      expect_near(sum_over_ranks(ours->weight.grad()), alone->weight.grad(), of_sums,
                  "of the weight");
      expect_near(sum_over_ranks(ours->bias.grad()), alone->bias.grad(), of_sums, "of the bias");
    }
    if (alone->running_mean.defined()) {
      expect_near(ours->running_mean, alone->running_mean, tolerance, "running_mean");
      expect_near(ours->running_var, alone->running_var, tolerance, "running_var");
      EXPECT_TRUE(at::equal(ours->num_batches_tracked, alone->num_batches_tracked));
      EXPECT_TRUE(same_bits_everywhere({ours->running_mean, ours->running_var}));
    }
  }

  template <class Norm>
  static Norm make(const BatchNormOptions& options, at::ScalarType dtype = at::kFloat) {
    Norm norm(options);
    if (options.affine()) {
      const torch::NoGradGuard no_grad;
      norm->weight.copy_(at::cos(at::arange(options.num_features())) + 1.5);
      norm->bias.copy_(at::sin(at::arange(options.num_features())));
    }
    norm->to(dtype);
    return norm;
  }

  template <class Norm>
  void expect_equals_one_process(const BatchNormOptions& options,
                                 const std::vector<std::int64_t>& shape, at::ScalarType dtype,
                                 at::MemoryFormat format = at::MemoryFormat::Contiguous) const {
    for (const BatchSizes& sizes : batch_sizes()) {
      SCOPED_TRACE(::testing::PrintToString(sizes) + " × " + ::testing::PrintToString(shape));
      Norm ours = make<Norm>(options, dtype);
      Norm alone = make<Norm>(options, dtype);
      EXPECT_EQ(convert_sync_batchnorm(*ours), 1);
      for (int step = 0; step < 2; ++step) {
        ours->zero_grad();
        alone->zero_grad();
        const at::Tensor x = values(sizes, shape, step, dtype).contiguous(format);
        expect_same_step(ours, alone, x, sizes, dtype == at::kDouble ? 1e-12 : 2e-5);
      }
    }
  }
};

TEST_F(SyncedBatchNorm, EqualsOneProcessOnTheWholeBatch) {
  using torch::nn::BatchNorm1d;
  using torch::nn::BatchNorm2d;
  using torch::nn::BatchNorm3d;
  expect_equals_one_process<BatchNorm1d>(7, {7}, at::kFloat);
  expect_equals_one_process<BatchNorm1d>(1, {1, 5}, at::kDouble);
  expect_equals_one_process<BatchNorm2d>(3, {3, 2, 5}, at::kFloat);
  expect_equals_one_process<BatchNorm2d>(13, {13, 3, 2}, at::kFloat,
                                         at::MemoryFormat::ChannelsLast);
  expect_equals_one_process<BatchNorm3d>(2, {2, 2, 3, 1}, at::kDouble);
}

TEST_F(SyncedBatchNorm, TakesEveryOption) {
  const BatchNormOptions options(3);
  for (const auto& each :
       {BatchNormOptions(options).affine(false), BatchNormOptions(options).momentum(std::nullopt),
        BatchNormOptions(options).track_running_stats(false),
        BatchNormOptions(options).momentum(0.7).eps(0.5)}) {
    expect_equals_one_process<torch::nn::BatchNorm2d>(each, {3, 2, 5}, at::kFloat);
  }
}

TEST_F(SyncedBatchNorm, TakesHalfPrecisionBesideParametersOfFloat) {
  const BatchSizes sizes = batch_sizes()[1];
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const bool affine : {true, false}) {
      const auto options = BatchNormOptions(3).affine(affine);
      auto ours = make<torch::nn::BatchNorm2d>(options);
      auto alone = make<torch::nn::BatchNorm2d>(options);
      convert_sync_batchnorm(*ours);
      expect_same_step(ours, alone, values(sizes, {3, 2, 5}, 0, dtype), sizes,
                       dtype == at::kHalf ? 2e-3 : 1e-2);
    }
  }
}

TEST_F(SyncedBatchNorm, IsDifferentiableTwice) {
  const BatchSizes sizes = batch_sizes()[2];
  auto ours = make<torch::nn::BatchNorm1d>(5, at::kDouble);
  auto alone = make<torch::nn::BatchNorm1d>(5, at::kDouble);
  convert_sync_batchnorm(*ours);
  const auto penalty = [](torch::nn::BatchNorm1d& norm, const at::Tensor& x) {
    const at::Tensor loss = norm(x).pow(3).sum();
    const auto gradients = torch::autograd::grad({loss}, {x, norm->weight}, {}, true, true);
    // The weight's gradient is a sum over ranks: a linear function of it is one too.
    (gradients[0].square().sum() + gradients[1].dot(at::arange(5, at::kDouble))).backward();
  };
  const at::Tensor whole = values(sizes, {5}, 0, at::kDouble).requires_grad_();
  const at::Tensor mine = part(whole, sizes).requires_grad_();
  penalty(alone, whole);
  penalty(ours, mine);
  expect_near(mine.grad(), part(whole.grad(), sizes), 1e-9);
  expect_near(sum_over_ranks(ours->weight.grad()), alone->weight.grad(), 1e-9);
}

TEST_F(SyncedBatchNorm, InDistributedDataParallelEqualsOneProcessAndStaysInStep) {
  torch::manual_seed(3);
  ConvolutionAndNorms alone;
  ConvolutionAndNorms net;
  load_state_dict(*net, state_dict(*alone));
  EXPECT_EQ(convert_sync_batchnorm(*net, {.process_group = group_}), 2);
  // Small buckets: their exchanges go on while batch norms exchange theirs.
  DistributedDataParallel model(net, {.process_group = group_, .bucket_cap_mb = 1e-4});
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  torch::optim::SGD reference(alone->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const BatchSizes sizes(world_size_, 3);
  for (int step = 0; step < 4; ++step) {
    const at::Tensor x = values(sizes, {2, 5, 5}, step, at::kFloat);
    const at::Tensor y = values(sizes, {11}, step + 2, at::kFloat);
    reference.zero_grad();
    at::mse_loss(alone(x), y).backward();
    reference.step();
    optimizer.zero_grad();
    at::mse_loss(model(part(x, sizes)), part(y, sizes)).backward();
    optimizer.step();
  }
  const auto ours = state_dict(*net);
  const auto expected = state_dict(*alone);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    SCOPED_TRACE(ours[i].first);
    expect_near(ours[i].second, expected[i].second, 1e-4);
    EXPECT_TRUE(same_bits_everywhere({ours[i].second.detach()}));
  }
}

struct NormAndHeadImpl : torch::nn::Module {
  NormAndHeadImpl() {
    first = register_module("first", torch::nn::Linear(5, 7));
    norm = register_module("norm", torch::nn::BatchNorm1d(7));
    head = register_module("head", torch::nn::Linear(7, 11000));  // lies alone
  }
  at::Tensor forward(const at::Tensor& x, bool takes_head) {
    const at::Tensor hidden = norm(first(x));
    return (takes_head ? head(hidden) : hidden).square().mean();
  }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(NormAndHead);

// The head's gradients come before the backward pass of the layer, in which ranks wait for each
// other; no rank may wait before it until others begin. Where calls are compared by an exchange, a
// plain backward() does.
TEST_F(SyncedBatchNorm, LetsRanksReachDifferentParametersBehindIt) {
  for (const bool is_weighted : {true, false}) {
    if (!is_weighted && !group_.shares_memory()) continue;
    SCOPED_TRACE(is_weighted);
    torch::manual_seed(5);
    NormAndHead alone;
    NormAndHead net;
    load_state_dict(*net, state_dict(*alone));
    convert_sync_batchnorm(*net, {.process_group = group_});
    DistributedDataParallel model(net, {.process_group = group_, .bucket_cap_mb = 1e-4});
    const BatchSizes sizes(world_size_, 3);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor x = values(sizes, {5}, step, at::kFloat);
      const auto takes_head = [&](int rank) { return (rank + step) % 2 == 0; };
      net->zero_grad();
      const at::Tensor loss = model(part(x, sizes), takes_head(rank_));
      is_weighted ? model.backward(loss, {.weight = 3}) : loss.backward();

      alone->zero_grad();
      const at::Tensor hidden = alone->norm(alone->first(x));
      at::Tensor sum = at::zeros({});
      for (int rank = 0; rank < world_size_; ++rank) {
        const at::Tensor own = hidden.narrow(0, 3 * rank, 3);
        sum = sum + (takes_head(rank) ? alone->head(own) : own).square().mean();
      }
      (sum / world_size_).backward();
      const auto ours = net->named_parameters();
      for (const auto& parameter : alone->named_parameters()) {
        SCOPED_TRACE(parameter.key());
        const at::Tensor expected = parameter.value().grad();
        ASSERT_EQ(ours[parameter.key()].grad().defined(), expected.defined());
        if (expected.defined()) expect_near(ours[parameter.key()].grad(), expected, 1e-5);
      }
    }
  }
}

struct NormAndTableImpl : torch::nn::Module {
  NormAndTableImpl() {
    first = register_module("first", torch::nn::Linear(5, 7));
    norm = register_module("norm", torch::nn::BatchNorm1d(7));
    table = register_module("table",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(11, 7).sparse(true)));
    head = register_module("head", torch::nn::Linear(7, 7));
  }
  at::Tensor forward(const at::Tensor& x, bool takes_table) {
    const at::Tensor hidden = norm(first(x));
    if (!takes_table) return hidden.square().mean();
    return (head(hidden) * table(at::arange(x.size(0), at::kLong))).square().mean();
  }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(NormAndTable);

// Numbers of rows, and what QuantizeHook gathers, start without waiting for other ranks.
TEST_F(SyncedBatchNorm, LetsRanksReachDifferentParametersBehindItWhateverIsExchanged) {
  torch::manual_seed(5);
  NormAndTable net;
  convert_sync_batchnorm(*net, {.process_group = group_});
  DistributedDataParallel model(net, {.process_group = group_,
                                      .bucket_cap_mb = 1e-4,
                                      .comm_hook = std::make_shared<QuantizeHook>()});
  const BatchSizes sizes(world_size_, 3);
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    const at::Tensor x = values(sizes, {5}, step, at::kFloat);
    model.backward(model(part(x, sizes), (rank_ + step) % 2 == 0), {.weight = 3});
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : net->parameters()) {
      if (!parameter.grad().defined()) continue;
      gradients.push_back(parameter.grad().to_dense().contiguous());
    }
    EXPECT_EQ(net->table->weight.grad().defined(), world_size_ > 1 || step != 1);
    EXPECT_TRUE(same_bits_everywhere(gradients));
  }
}

TEST_F(SyncedBatchNorm, CommunicatesNothingInEvaluation) {
  const at::Tensor x = values({6}, {3}, rank_, at::kFloat);
  for (const bool track : {true, false}) {
    const auto options = BatchNormOptions(3).track_running_stats(track);
    auto norm = make<torch::nn::BatchNorm1d>(options);
    auto alone = make<torch::nn::BatchNorm1d>(options);
    convert_sync_batchnorm(*norm);
    norm->eval();
    alone->eval();
    if (rank_ != 0) continue;
    EXPECT_TRUE(at::equal(norm(x), alone(x)));
  }
  group_.barrier();
}

TEST_F(SyncedBatchNorm, StaysConvertedThroughToAndLoadButNotInClones) {
  auto norm = make<torch::nn::BatchNorm1d>(3);
  convert_sync_batchnorm(*norm);
  norm->to(at::kDouble);
  load_state_dict(*norm, state_dict(*make<torch::nn::BatchNorm1d>(3, at::kDouble)));
  EXPECT_EQ(convert_sync_batchnorm(*norm), 1);  // Once more does no harm.
  const BatchSizes sizes = batch_sizes()[1];
  const at::Tensor x = values(sizes, {3}, 0, at::kDouble);
  auto alone = make<torch::nn::BatchNorm1d>(3, at::kDouble);
  expect_same_step(norm, alone, x, sizes, 1e-12);

  const auto clone = std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(norm->clone());
  const at::Tensor mine = part(x, sizes);
  EXPECT_TRUE(at::equal(clone->forward(mine), make<torch::nn::BatchNorm1d>(3, at::kDouble)(mine)));
}

TEST_F(SyncedBatchNorm, WorksInInferenceMode) {
  const BatchSizes sizes = batch_sizes()[1];
  auto norm = make<torch::nn::BatchNorm1d>(3);
  auto alone = make<torch::nn::BatchNorm1d>(3);
  convert_sync_batchnorm(*norm);
  const c10::InferenceMode inference;
  const at::Tensor x = values(sizes, {3}, 0, at::kFloat);
  expect_near(norm(part(x, sizes)), part(alone(x), sizes), 2e-5);
  expect_near(norm->running_var, alone->running_var, 2e-5);
}

TEST_F(SyncedBatchNorm, LeavesOtherCallsOfTheOperatorAsTheyAre) {
  auto converted = make<torch::nn::BatchNorm2d>(3);
  convert_sync_batchnorm(*converted);
  for (const bool training : {true, false}) {
    const auto run = [&](auto&& batch_norm) {
      auto norm = make<torch::nn::BatchNorm2d>(3);
      const at::Tensor x = values({4}, {3, 2, 5}, rank_, at::kFloat).requires_grad_();
      const at::Tensor y = batch_norm(x, norm->weight, norm->bias, norm->running_mean,
                                      norm->running_var, training, 0.1, 1e-5, true);
      y.pow(2).sum().backward();
      return Tensors{y, x.grad(), norm->weight.grad(), norm->bias.grad(), norm->running_var};
    };
    const Tensors ours = run([](auto&&... all) { return at::batch_norm(all...); });
    const Tensors native = run([](auto&&... all) { return at::native::batch_norm(all...); });
    for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(at::equal(ours[i], native[i]));
  }
}

TEST_F(SyncedBatchNorm, WithoutAnyBatchNormThereIsNothingToConvert) {
  EXPECT_EQ(convert_sync_batchnorm(*torch::nn::Linear(2, 3)), 0);
}

TEST_F(SyncedBatchNorm, AModuleThatCannotBeConvertedIsNamedOnEveryRank) {
  const bool is_bad = rank_ == world_size_ - 1;
  torch::nn::BatchNorm1d norm(BatchNormOptions(3).affine(!is_bad).track_running_stats(!is_bad));
  if (is_bad) {
    EXPECT_SAYS(message_of<UsageError>([&] { convert_sync_batchnorm(*norm); }), "neither affine");
  } else {
    const auto error = error_of<PeerFailed>([&] { convert_sync_batchnorm(*norm); });
    EXPECT_EQ(error.rank(), world_size_ - 1);
    EXPECT_SAYS(std::string(error.what()), concat("rank ", world_size_ - 1));
  }
}

TEST_F(SyncedBatchNorm, LayersOfOneGroupShareAnother) {
  NEEDS_RANKS(2);
  // Groups of one parent are numbered in the order in which they are made.
  const auto next_number = [&] {
    const std::string name = group_of_all().name();
    return std::stoi(name.substr(name.rfind('/') + 1));
  };
  const SyncBatchNormOptions options{.process_group = group_};
  const SyncBatchNorm first(3, options);
  const int number = next_number();
  const SyncBatchNorm second(3, options);
  const SyncBatchNorm third(5, options);
  EXPECT_EQ(next_number(), number + 1);
}

TEST_F(SyncedBatchNorm, ARankMayLetGoOfItsLayersSooner) {
  NEEDS_RANKS(2);
  const SyncBatchNormOptions options{.process_group = group_};
  SyncBatchNorm kept = nullptr;
  {
    const SyncBatchNorm first(1, options);
    if (rank_ == 0) kept = first;
  }
  SyncBatchNorm second(1, options);
  const at::Tensor values = at::full({1, 1}, static_cast<double>(rank_));
  const double mean = (world_size_ - 1) / 2.0;
  second(values);
  EXPECT_NEAR(second->running_mean.item<double>(), 0.1 * mean, 1e-6);
}

TEST_F(SyncedBatchNorm, DifferentModulesAreRefusedOnEveryRank) {
  NEEDS_RANKS(2);
  ConvolutionAndNorms net;
  torch::nn::Module& module = rank_ == 1 ? static_cast<torch::nn::Module&>(*net->norm) : *net;
  EXPECT_SAYS(message_of<UsageError>([&] { convert_sync_batchnorm(module); }),
              rank_ == 1 ? "has 1 BatchNorms, that of rank 0 has 2"
                         : "has 2 BatchNorms, that of rank 1 has 1");
  torch::nn::BatchNorm1d norm(rank_ == 1 ? 3 : 4);
  EXPECT_SAYS(message_of<UsageError>([&] { convert_sync_batchnorm(*norm); }),
              "of other names or sizes");
}

TEST_F(SyncedBatchNorm, WhatRanksDoDifferentlyIsToldOnEveryRank) {
  NEEDS_RANKS(2);
  const SyncBatchNormOptions options{.process_group = group_};
  SyncBatchNorm first(3, options);
  SyncBatchNorm second(3, options);
  const at::Tensor x = values({4}, {3}, rank_, at::kFloat).requires_grad_();
  EXPECT_SAYS(message_of<UsageError>([&] { first(rank_ == 1 ? x.slice(1, 0, 2) : x); }),
              "the input of rank 1 has 2 channels, the module 3");
  EXPECT_SAYS(message_of<UsageError>([&] { (rank_ == 1 ? first : second)(x); }),
              "runs SyncBatchNorm number ");
  EXPECT_SAYS(message_of<UsageError>([&] { first(rank_ == 1 ? x : x.slice(0, 0, 0)); }),
              "no error");  // four values are enough for all
  EXPECT_SAYS(message_of<UsageError>([&] { first(x.slice(0, 0, rank_ == 1 ? 1 : 0)); }),
              "have 1 values per channel together");
  EXPECT_SAYS(message_of<UsageError>([&] {
                const c10::AutoGradMode mode(rank_ != 1);
                first(x);
              }),
              "rank 1 runs forward without gradients");
  const at::Tensor of_first = first(x).sum();
  const at::Tensor of_second = second(x).sum();
  EXPECT_SAYS(message_of<UsageError>([&] { (rank_ == 1 ? of_first : of_second).backward(); }),
              "runs backward of a different SyncBatchNorm");
}

TEST_F(SyncedBatchNorm, CallsOfOtherSizesAreToldOnEveryRank) {
  NEEDS_RANKS(2);
  const ProcessGroup group = group_of_all();  // shm ends the one that ranks call differently
  SyncBatchNorm first(3, {.process_group = group});
  SyncBatchNorm second(5, {.process_group = group});
  const at::Tensor x = values({4}, {5}, rank_, at::kFloat);
  EXPECT_SAYS(message_of<UsageError>([&] {
                if (rank_ == 1) {
                  first(x.slice(1, 0, 3));
                } else {
                  second(x);
                }
              }),
              "ranks differ in the module, the pass or the number of channels");
}

TEST_F(SyncedBatchNorm, TheModuleEqualsTheConvertedOneAndTakesOneValueAChannel) {
  const BatchSizes sizes(world_size_, 1);
  for (const std::optional<double> momentum : {std::optional<double>(0.3), {}}) {
    if (world_size_ == 1) {
      EXPECT_SAYS(message_of<UsageError>([&] {
                    SyncBatchNorm(3)(at::ones({1, 3}));
                  }),
                  "one value per channel");
      break;
    }
    SyncBatchNorm ours(3, {.momentum = momentum});
    torch::nn::BatchNorm1d alone(BatchNormOptions(3).momentum(momentum));
    for (int step = 0; step < 2; ++step) {
      ours->zero_grad();
      alone->zero_grad();
      // Of two values the variance may be tiny, and then the result is ill-conditioned.
      const at::Tensor x = values(sizes, {3}, step, at::kDouble);
      ours->to(at::kDouble);
      alone->to(at::kDouble);
      expect_same_step(ours, alone, x, sizes, 1e-9);
    }
    ours->eval();
    alone->eval();
    const at::Tensor x = values({2}, {3}, 1, at::kDouble);
    expect_near(ours(x), alone(x), 1e-9);
  }
  const at::Tensor x = values(BatchSizes(world_size_, 4), {3}, 0, at::kFloat);
  SyncBatchNorm norm(3);
  const auto clone = std::dynamic_pointer_cast<SyncBatchNormImpl>(norm->clone());
  torch::nn::BatchNorm1d alone(3);
  expect_same_step(clone, alone, x, BatchSizes(world_size_, 4), 2e-5);
  std::ostringstream text;
  text << *norm;
  EXPECT_EQ(text.str(),
            "lockstep::SyncBatchNorm(3, eps=1e-05, momentum=0.1, affine=true, "
            "track_running_stats=true)");
  for (const std::int64_t none : {0, -3}) {
    EXPECT_SAYS(message_of<UsageError>([&] { SyncBatchNorm refused(none); }),
                "SyncBatchNorm: num_features=" + std::to_string(none));
  }
}

TEST_F(SyncedBatchNorm, ALayerOutlivesItsModuleAndTheGroupItsParent) {
  const BatchSizes sizes = batch_sizes()[1];
  const at::Tensor x = values(sizes, {3}, 0, at::kFloat);
  const at::Tensor mine = part(x, sizes).requires_grad_();
  at::Tensor output;
  {
    const ProcessGroup group = group_of_all();
    auto norm = make<torch::nn::BatchNorm1d>(3);
    convert_sync_batchnorm(*norm, {.process_group = group});
    output = norm(mine);
  }
  EXPECT_EQ(convert_sync_batchnorm(*torch::nn::Linear(2, 3)), 0);  // forgets what is gone
  output.pow(2).sum().backward();
  EXPECT_TRUE(mine.grad().defined());
}

}  // namespace
}  // namespace lockstep::testing
