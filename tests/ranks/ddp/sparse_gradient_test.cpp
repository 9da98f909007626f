// Gradients of which a step touches some rows only, as of embeddings made with sparse(true).
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/hooks.h"
#include "tests/ranks/ddp_fixture.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

struct LookupImpl : torch::nn::Module {
  LookupImpl() {
    table = register_module("table",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(13, 3).sparse(true)));
    linear = register_module("linear", torch::nn::Linear(3, 2));
  }
  at::Tensor forward(const at::Tensor& indices, bool look_up = true) {
    return linear(look_up ? table(indices) : at::ones({1, 3}));
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Lookup);

// Two tables that need not be used; the second has a gradient of 256 KiB.
struct TablesImpl : torch::nn::Module {
  TablesImpl() {
    small = register_module("small", torch::nn::Embedding(sparse(13)));
    large = register_module("large", torch::nn::Embedding(sparse(22'000)));
    linear = register_module("linear", torch::nn::Linear(3, 2));
    never = register_parameter("never", at::ones({3}));
  }
  static torch::nn::EmbeddingOptions sparse(std::int64_t rows) {
    return torch::nn::EmbeddingOptions(rows, 3).sparse(true);
  }
  at::Tensor forward(const at::Tensor& indices, bool look_up) {
    const at::Tensor ones = at::ones({indices.numel(), 3});
    return linear(look_up ? small(indices) + large(indices * 1000) : ones);
  }
  torch::nn::Embedding small{nullptr};
  torch::nn::Embedding large{nullptr};
  torch::nn::Linear linear{nullptr};
  at::Tensor never;
};
TORCH_MODULE(Tables);

class SparseGradients : public DdpTest {
 protected:
  at::Tensor indices(int step) const {
    return at::remainder(at::arange(2 + rank_, at::kLong) * 5 + step + rank_, 13);
  }

  // Both tables have the average over ranks; nothing where no rank looks up.
  void expect_averages(const TablesImpl& model, const TablesImpl& plain, bool any) const {
    for (const auto& [actual, own] : {std::pair(model.small->weight, plain.small->weight),
                                      std::pair(model.large->weight, plain.large->weight)}) {
      at::Tensor expected = own.grad();
      expected = expected.defined() ? expected.to_dense() : at::zeros_like(own);
      group_.all_reduce(expected, {.op = ReduceOp::kAvg});
      ASSERT_EQ(actual.grad().defined(), any);
      if (!any) continue;
      EXPECT_EQ(actual.grad().layout(), at::kSparse);
      EXPECT_TRUE(at::allclose(actual.grad().to_dense(), expected));
      EXPECT_TRUE(same_bits_everywhere({actual.grad().to_dense()}));
    }
  }
  static double norm_of(const TablesImpl& model) {
    double squares = 0;
    for (const at::Tensor& parameter : model.parameters()) {
      if (!parameter.grad().defined()) continue;
      squares += parameter.grad().to_dense().square().sum().item<double>();
    }
    return std::sqrt(squares);
  }
};

TEST_F(SparseGradients, AreAveragedByTheirRows) {
  DistributedDataParallel model(Lookup(), {.gradient_norm = true});
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    Lookup plain;
    copy_state(*model, *plain);
    // As many rows as the rank's number; in the last step but one rank 0 looks none up, in the last
    // nobody does.
    const at::Tensor indices = at::remainder(at::arange(rank_, at::kLong) * 5 + step + rank_, 13);
    const bool look_up = step < 2 || (step == 2 && rank_ > 0);
    optimizer.zero_grad();
    model(indices, look_up).square().sum().backward();
    plain(indices, look_up).square().sum().backward();
    at::Tensor expected = plain->table->weight.grad();
    expected = expected.defined() ? expected.to_dense() : at::zeros({13, 3});
    group_.all_reduce(expected, {.op = ReduceOp::kAvg});
    const at::Tensor& gradient = model->table->weight.grad();
    const bool any = step < 2 || (step == 2 && world_size_ > 1);
    ASSERT_EQ(gradient.defined(), any);
    double squares = expected.square().sum().item<double>();
    if (any) {
      EXPECT_EQ(gradient.layout(), at::kSparse);
      EXPECT_TRUE(at::allclose(gradient.to_dense(), expected));
      EXPECT_TRUE(same_bits_everywhere({gradient.to_dense()}));
    }
    for (const at::Tensor& dense : {model->linear->weight, model->linear->bias}) {
      squares += dense.grad().square().sum().item<double>();
    }
    EXPECT_NEAR(model.gradient_norm(), std::sqrt(squares), 1e-5 * std::sqrt(squares));
    optimizer.step();
    EXPECT_TRUE(same_bits_everywhere({model->table->weight.detach()}));
  }
}

TEST_F(SparseGradients, OfAnotherLayoutThanInTheFirstPassAreRefusedByName) {
  NEEDS_RANKS(2);
  const ProcessGroup group = group_.new_group(all_ranks());
  DistributedDataParallel model(Lookup(), {.process_group = group});
  model(at::arange(3, at::kLong)).sum().backward();
  model->zero_grad();
  const std::string message = message_of<UsageError>(
      [&] { (model(at::arange(3, at::kLong)).sum() + model->table->weight.sum()).backward(); });
  EXPECT_SAYS(message, "'table.weight' has a strided gradient where some rank had a sparse one");
}

// Nobody looks up at first; then the last rank alone, then all, nobody, and rank 0.
TEST_F(SparseGradients, OfParametersThatAreReachedLaterAreAveragedAsThoseReachedAtOnce) {
  std::vector<DistributedDataParallelOptions> ways;
  for (const double cap_mb : {1e-6, 1e-4, 25.0}) ways.push_back({.bucket_cap_mb = cap_mb});
  ways.push_back({.find_unused_parameters = true, .measure_exchange = true});
  ways.push_back({.gradient_as_bucket_view = false});
  ways.push_back({.exchange_dtype = at::kHalf});
  ways.push_back({.comm_hook = std::make_shared<AllReduceHook>()});
  ways.push_back({.bucket_cap_mb = 1e-4, .comm_hook = std::make_shared<QuantizeHook>()});
  for (std::size_t way = 0; way < ways.size(); ++way) {
    DistributedDataParallelOptions options = ways[way];
    options.gradient_norm = true;
    DistributedDataParallel model(Tables(), options);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    for (int step = 0; step < 6; ++step) {
      SCOPED_TRACE(concat("way ", way, ", step ", step));
      Tables plain;
      copy_state(*model, *plain);
      const bool look_up = step == 2 || step == 4 || (step == 1 && rank_ == world_size_ - 1) ||
                           (step == 5 && rank_ == 0);
      optimizer.zero_grad();
      model(indices(step), look_up).square().sum().backward();
      plain(indices(step), look_up).square().sum().backward();
      expect_averages(*model, *plain, step == 1 || step == 2 || step > 3);
      EXPECT_FALSE(model->never.grad().defined());
      EXPECT_NEAR(model.gradient_norm(), norm_of(*model), 1e-5 * norm_of(*model));
      optimizer.step();
      EXPECT_TRUE(same_bits_everywhere(model->parameters()));
    }
  }
}

// What the wrapper says that it exchanges follows.
TEST_F(SparseGradients, OfParametersThatAreReachedLaterLeaveTheirBuckets) {
  NEEDS_RANKS(2);
  DistributedDataParallel model(Tables(), {.measure_exchange = true});
  const auto kinds_of = [&](const std::string& name) {
    std::vector<BucketKind> kinds;
    for (const BucketLayout& bucket : model.bucket_layout()) {
      for (const std::string& parameter : bucket.parameters) {
        if (parameter == name) kinds.push_back(bucket.kind);
      }
    }
    return kinds;
  };
  model(indices(0), false).sum().backward();
  EXPECT_EQ(kinds_of("small.weight"), std::vector{BucketKind::kBucket});
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    model(indices(0), rank_ == 1).sum().backward();
    EXPECT_EQ(kinds_of("small.weight"), std::vector{BucketKind::kSparseGradient});
    EXPECT_EQ(kinds_of("large.weight"), std::vector{BucketKind::kSparseGradient});
    EXPECT_EQ(kinds_of("never"), std::vector{BucketKind::kBucket});
    EXPECT_EQ(model.exchange_report().buckets.size(), model.bucket_layout().size());
    for (const auto& bucket : model.exchange_report().buckets) {
      EXPECT_LE(bucket.ready, bucket.started);
      EXPECT_LE(bucket.started, bucket.complete);
    }
  }
}

TEST_F(SparseGradients, OnSomeRanksAndStridedOnesOnOthersAreRefusedOnAll) {
  NEEDS_RANKS(2);
  for (const bool at_first : {true, false}) {
    const ProcessGroup group = group_.new_group(all_ranks());
    DistributedDataParallel model(Lookup(), {.process_group = group});
    if (!at_first) model(indices(0), false).sum().backward();
    model->zero_grad();
    const std::string message = message_of<UsageError>([&] {
      const at::Tensor loss = model(indices(0), rank_ == 0).sum();
      (rank_ == 1 ? loss + model->table->weight.sum() : loss).backward();
    });
    EXPECT_SAYS(message, "'table.weight' has a sparse gradient on some rank and a strided one on");
  }
}

}  // namespace
}  // namespace lockstep::testing
