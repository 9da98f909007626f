#include "lockstep/train/metrics.h"

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/library.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/internal/gloo_pair_testing.h"

namespace lockstep {
namespace {

constexpr c10::DispatchKey kFarKey = c10::DispatchKey::PrivateUse1;

thread_local std::function<void()> on_read;

// A number in the memory of a device, which is read when it is asked for.
at::Tensor far_number(double value) {
  const c10::Device device(c10::kPrivateUse1, 0);
  auto* const number = new double(value);
  c10::DataPtr data(
      number, number, [](void* it) { delete static_cast<double*>(it); }, device);
  c10::Storage storage(c10::Storage::use_byte_size_t(), sizeof value, std::move(data), nullptr,
                       false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(kFarKey), caffe2::TypeMeta::Make<double>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({});
  return tensor;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_local_scalar_dense", [](const at::Tensor& self) -> at::Scalar {
    if (on_read) on_read();
    return *static_cast<const double*>(self.storage().data());
  });
}

struct Lost : Error {
  Lost() : Error("the peer is lost") {}
};

// Two ranks in this process: this thread and another.
class MetricMeansOfTwoRanks : public ::testing::Test {
 protected:
  // What each rank gets, or the error that it throws; in a new group.
  void on_both(const std::function<void(int rank, const ProcessGroup& group)>& action) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    auto peer = std::async(std::launch::async, [&] { action(1, gloo_pair(1, store, {})); });
    action(0, gloo_pair(0, store, [&] {
             const auto state = peer.wait_for(std::chrono::seconds(0));
             if (state == std::future_status::ready && peer_fails_) throw Lost();
           }));
    peer.get();
  }

  bool peer_fails_ = false;
};

TEST_F(MetricMeansOfTwoRanks, MayBeTakenAgainAfterAReductionHasFailed) {
  MetricMeans means[2];
  for (int rank = 0; rank < 2; ++rank) {
    means[rank].log("loss", far_number(rank == 0 ? 2 : 7), 3);
    means[rank].log("loss", far_number(rank == 0 ? 5 : 1), 1);
    means[rank].log("accuracy", 0.25 * rank, 2);
  }
  // Between its two reductions the peer fails, twice; then both are taken by another group.
  peer_fails_ = true;
  for (int failure = 0; failure < 2; ++failure) {
    on_both([&](int rank, const ProcessGroup& group) {
      if (rank == 1) on_read = [] { throw std::runtime_error("a device fails"); };
      EXPECT_ANY_THROW(means[rank].take_means(group)) << rank;
      on_read = {};
      EXPECT_FALSE(means[rank].empty());
    });
  }
  peer_fails_ = false;
  on_both([&](int rank, const ProcessGroup& group) {
    double agreed = 1 + rank;
    const Metrics taken = means[rank].take_means(group, {&agreed, 1});
    EXPECT_EQ(taken, (Metrics{{"loss", (2 * 3 + 5 + 7 * 3 + 1) / 8.0}, {"accuracy", 0.125}}));
    EXPECT_EQ(agreed, 1);
    EXPECT_TRUE(means[rank].empty());
  });
}

// Rank 1 has begun when rank 0 had logged its second name already.
TEST_F(MetricMeansOfTwoRanks, AreThoseOfTheRanksThatHaveANameWhereSomeAreNew) {
  MetricMeans means[2];
  for (const char* name : {"loss", "accuracy", "only 0"}) means[0].log(name, 4, 1);
  for (const char* name : {"only 1", "accuracy", "loss"}) means[1].log(name, 2, 3);
  on_both([&](int rank, const ProcessGroup& group) {
    EXPECT_THROW(means[rank].take_means(group), UsageError);
    const Metrics taken = means[rank].take_means(group, {}, /*has_new_ranks=*/true);
    EXPECT_EQ(taken, (Metrics{{"loss", 2.5}, {"accuracy", 2.5}, {"only 0", 4}, {"only 1", 2}}));
    EXPECT_TRUE(means[rank].empty());
  });
}

TEST_F(MetricMeansOfTwoRanks, MayBeLoggedInAnyOrder) {
  MetricMeans means[2];
  for (const char* name : {"loss", "accuracy"}) means[0].log(name, 4, 1);
  for (const char* name : {"accuracy", "loss"}) means[1].log(name, 2, 1);
  on_both([&](int rank, const ProcessGroup& group) {
    EXPECT_EQ(means[rank].take_means(group), (Metrics{{"loss", 3}, {"accuracy", 3}}));
  });
}

}  // namespace
}  // namespace lockstep
