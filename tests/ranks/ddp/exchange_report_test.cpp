#include "lockstep/ddp/exchange_report.h"

#include <algorithm>
#include <set>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/hooks.h"
#include "tests/ranks/ddp_fixture.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

// One of each kind: sparse, large (320 kB), several small, and one of another dtype.
struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    table = register_module("table",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(11, 4).sparse(true)));
    wide = register_module("wide", torch::nn::Linear(4, 20'000));
    tail = register_module("tail", torch::nn::Linear(20'000, 2));
    scale = register_parameter("scale", at::ones({3}, at::kDouble));
  }
  at::Tensor forward(const at::Tensor& indices) {
    return tail(at::tanh(wide(table(indices)))).to(at::kDouble).sum() * scale.sum();
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear wide{nullptr};
  torch::nn::Linear tail{nullptr};
  at::Tensor scale;
};
TORCH_MODULE(Mixed);

struct ChainImpl : torch::nn::Module {
  ChainImpl() {
    for (int i = 0; i < 3; ++i) {
      links.push_back(register_module(
          std::to_string(i), torch::nn::Linear(torch::nn::LinearOptions(5, 5).bias(false))));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& link : links) x = at::tanh(link(x));
    return x;
  }
  std::vector<torch::nn::Linear> links;
};
TORCH_MODULE(Chain);

class ExchangeReportOfSteps : public DdpTest {
 protected:
  at::Tensor indices() const { return at::remainder(at::arange(6, at::kLong) * (rank_ + 1), 11); }

  static const BucketLayout& with(const std::vector<BucketLayout>& layout,
                                  const std::string& parameter) {
    return *std::find_if(layout.begin(), layout.end(), [&](const BucketLayout& bucket) {
      const auto& names = bucket.parameters;
      return std::find(names.begin(), names.end(), parameter) != names.end();
    });
  }

  // Every parameter once, in the bucket that holds it.
  static void expect_each_once(const std::vector<BucketLayout>& layout, std::size_t parameters) {
    std::set<std::string> names;
    std::size_t count = 0;
    for (const BucketLayout& bucket : layout) {
      names.insert(bucket.parameters.begin(), bucket.parameters.end());
      count += bucket.parameters.size();
    }
    EXPECT_EQ(names.size(), parameters);
    EXPECT_EQ(count, parameters);
  }

  static void expect_ordered(const ExchangeReport& report,
                             const std::vector<BucketLayout>& layout) {
    ASSERT_EQ(report.buckets.size(), layout.size());
    using Time = ExchangeReport::Time;
    std::int64_t bytes = 0;
    Time waited{};
    Time started{};
    for (std::size_t number = 0; number < layout.size(); ++number) {
      const ExchangeReport::Bucket& bucket = report.buckets[number];
      EXPECT_EQ(bucket.bytes, layout[number].bytes);
      EXPECT_LE(Time::zero(), bucket.ready);
      EXPECT_LE(bucket.ready, bucket.started);
      EXPECT_LE(started, bucket.started);
      EXPECT_LE(bucket.started, bucket.complete);
      EXPECT_LE(bucket.complete, report.exchanged);
      EXPECT_LE(Time::zero(), bucket.waited);
      started = bucket.started;
      bytes += bucket.bytes;
      waited += bucket.waited;
    }
    EXPECT_EQ(report.bytes, bytes);
    EXPECT_EQ(report.waited, waited);
    EXPECT_LE(report.backward, report.exchanged);
    EXPECT_LE(report.waited, report.exchanged - report.backward);
    EXPECT_LE(report.in_flight, report.exchanged);
    EXPECT_LE(0, report.overlap_ratio);
    EXPECT_GE(1, report.overlap_ratio);
  }

  BucketKind kind(BucketKind in_a_group) const {
    return world_size_ == 1 ? BucketKind::kNotExchanged : in_a_group;
  }
};

TEST_F(ExchangeReportOfSteps, LayoutSaysWhatTravelsTogether) {
  DistributedDataParallel model(Mixed(), {.bucket_cap_mb = 25});
  EXPECT_TRUE(model.bucket_layout().empty());
  model(indices()).backward();
  const std::vector<BucketLayout> layout = model.bucket_layout();
  expect_each_once(layout, 6);

  const BucketLayout& sparse = with(layout, "table.weight");
  EXPECT_EQ(sparse.kind, kind(BucketKind::kSparseGradient));
  EXPECT_EQ(sparse.bytes, 11 * 4 * 4);
  const bool in_place = group_.shares_memory();
  const BucketLayout& large = with(layout, "wide.weight");
  EXPECT_EQ(large.kind, kind(in_place ? BucketKind::kLargeGradient : BucketKind::kBucket));
  const BucketLayout& small = with(layout, "tail.weight");
  EXPECT_EQ(small.kind, kind(BucketKind::kBucket));
  EXPECT_EQ(small.dtype, at::kFloat);
  EXPECT_EQ(&small, &with(layout, "tail.bias"));
  EXPECT_EQ(&small, &with(layout, "wide.bias"));
  constexpr std::int64_t kSmallBytes = (2 * 20'000 + 2 + 20'000) * 4;
  constexpr std::int64_t kLargeBytes = 4 * 20'000 * 4;
  if (in_place) {
    EXPECT_EQ(large.bytes, kLargeBytes);
    EXPECT_EQ(small.bytes, kSmallBytes);
  } else {
    EXPECT_EQ(&large, &small);
    EXPECT_EQ(small.bytes, kSmallBytes + kLargeBytes);
  }
  const BucketLayout& other = with(layout, "scale");
  EXPECT_EQ(other.dtype, at::kDouble);
  EXPECT_EQ(other.bytes, 3 * 8);
}

TEST_F(ExchangeReportOfSteps, LayoutIsInTheOrderOfBackward) {
  DistributedDataParallel model(Chain(), {.bucket_cap_mb = 1e-6});
  model(at::ones({2, 5})).sum().backward();
  std::vector<std::string> names;
  for (const BucketLayout& bucket : model.bucket_layout()) {
    names.insert(names.end(), bucket.parameters.begin(), bucket.parameters.end());
  }
  EXPECT_EQ(names, (std::vector<std::string>{"2.weight", "1.weight", "0.weight"}));
}

TEST_F(ExchangeReportOfSteps, LayoutSaysHowItTravels) {
  NEEDS_RANKS(2);
  DistributedDataParallel rounded(Chain(), {.exchange_dtype = at::kBFloat16});
  rounded(at::ones({2, 5})).sum().backward();
  EXPECT_EQ(rounded.bucket_layout().at(0).dtype, at::kBFloat16);
  EXPECT_EQ(rounded.bucket_layout().at(0).bytes, 3 * 25 * 2);

  DistributedDataParallel hooked(Chain(), {.comm_hook = std::make_shared<AllReduceHook>()});
  hooked(at::ones({2, 5})).sum().backward();
  EXPECT_EQ(hooked.bucket_layout().at(0).kind, BucketKind::kCommHook);
  EXPECT_EQ(hooked.bucket_layout().at(0).bytes, 3 * 25 * 4);
}

TEST_F(ExchangeReportOfSteps, TimesAreInOrder) {
  for (const bool with_hook : {false, true}) {
    DistributedDataParallelOptions options{.bucket_cap_mb = 1e-3, .measure_exchange = true};
    if (with_hook) options.comm_hook = std::make_shared<AllReduceHook>();
    DistributedDataParallel model(Mixed(), options);
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      model(indices()).backward();
      expect_ordered(model.exchange_report(), model.bucket_layout());
    }
  }
}

TEST_F(ExchangeReportOfSteps, IsRefusedWithoutMeasuring) {
  DistributedDataParallel model(Chain(), {});
  model(at::ones({2, 5})).sum().backward();
  EXPECT_SAYS(message_of<UsageError>([&] { model.exchange_report(); }), "measure_exchange = true");
  DistributedDataParallel measured(Chain(), {.measure_exchange = true});
  EXPECT_SAYS(message_of<UsageError>([&] { measured.exchange_report(); }), "after backward()");
}

}  // namespace
}  // namespace lockstep::testing
