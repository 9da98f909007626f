// The norm of the averaged gradients that comes with the exchange.
#include <memory>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/hooks.h"
#include "tests/ranks/factors.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

class GradientNorm : public Conformance {
 protected:
  // The norm is that of the gradients, on every rank the same bits.
  void expect_norm(const DistributedDataParallel<FactorsImpl>& model) const {
    double squares = 0;
    for (const at::Tensor& parameter : model.parameters()) {
      const at::Tensor& gradient = parameter.grad();
      if (gradient.defined()) squares += gradient.to(at::kDouble).square().sum().item<double>();
    }
    const double norm = model.gradient_norm();
    EXPECT_GT(norm, 0);
    EXPECT_NEAR(norm, std::sqrt(squares), 1e-9 * norm);
    EXPECT_TRUE(same_bits_everywhere({at::full({1}, norm, at::kDouble)}));
  }
  at::Tensor factor(std::int64_t numel, double scale = 1) const {
    return at::sin(at::arange(numel, at::kFloat) * (rank_ + 1) + 1) * scale;
  }
};

TEST_F(GradientNorm, OfLargeAndSmallGradients) {
  DistributedDataParallel model(Factors(Sizes{150'001, 3, 1, 65'536, 70'000}),
                                {.gradient_norm = true});
  for (int step = 1; step <= 3; ++step) {  // The buckets are rebuilt after the first.
    model->zero_grad();
    model(Tensors{factor(150'001, step), factor(3), factor(1), factor(65'536), factor(70'000)})
        .backward();
    expect_norm(model);
  }
}

TEST_F(GradientNorm, OfTinyGradientsIsNotLostBesideOthers) {
  DistributedDataParallel model(Factors(Sizes{1000, 3, 150'001}), {.gradient_norm = true});
  for (int step = 1; step <= 2; ++step) {
    model->zero_grad();
    model(Tensors{factor(1000, 1e-20), factor(3, 1e-20), factor(150'001, 1e-20)}).backward();
    expect_norm(model);
    EXPECT_LT(model.gradient_norm(), 1e-17);
  }
}

TEST_F(GradientNorm, CountsUnusedParametersAsTheOthersShareAndAsNothing) {
  DistributedDataParallel model(Factors(Sizes{150'001, 3, 150'001, 7, 11}),
                                {.gradient_norm = true});
  for (int step = 1; step <= 3; ++step) {
    model->zero_grad();
    // The first two are used by the last rank alone, the next two by none.
    const bool is_last = rank_ == world_size_ - 1;
    model(Tensors{is_last ? factor(150'001) : at::Tensor(), is_last ? factor(3) : at::Tensor(),
                  at::Tensor(), at::Tensor(), factor(11)})
        .backward();
    expect_norm(model);
    EXPECT_FALSE(model.parameters()[3].grad().defined());
  }
}

TEST_F(GradientNorm, IsThatOfTheLastExchangeAndOfWhatHasAddedUp) {
  DistributedDataParallel model(Factors(Sizes{150'001, 3}), {.gradient_norm = true});
  EXPECT_THROW(model.gradient_norm(), UsageError);
  for (int round = 0; round < 2; ++round) {
    model->zero_grad(/*set_to_none=*/round == 0);
    model(Tensors{factor(150'001), factor(3)}).backward();
    const double before = model.gradient_norm();
    {
      const auto guard = model.no_sync();
      model(Tensors{factor(150'001, 5), factor(3)}).backward();
    }
    EXPECT_EQ(model.gradient_norm(), before);
    model(Tensors{factor(150'001), factor(3, 4)}).backward();
    expect_norm(model);
    EXPECT_GT(model.gradient_norm(), before);
  }
}

TEST_F(GradientNorm, OfAnyDtypeAndOfSeveral) {
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kDouble, at::kFloat}) {
    Factors module(Sizes{150'001, 3, 300'007, 9});
    for (const std::size_t i : {0, 1}) {
      at::Tensor& parameter = module->factors[i];
      parameter.set_data(parameter.to(dtype));
    }
    DistributedDataParallel model(module, {.gradient_norm = true});
    for (int step = 1; step <= 2; ++step) {
      model->zero_grad();
      model(Tensors{factor(150'001), factor(3), factor(300'007), factor(9)}).backward();
      expect_norm(model);
    }
  }
}

// A hook that rounds makes some other number of the zeros of what is not used.
TEST_F(GradientNorm, OfAHookThatRoundsCountsUnusedParametersAsNothing) {
  DistributedDataParallel model(
      Factors(Sizes{1000, 7, 1000}),
      {.gradient_norm = true, .comm_hook = std::make_shared<QuantizeHook>()});
  for (int step = 1; step <= 3; ++step) {
    model->zero_grad();
    const bool is_last = rank_ == world_size_ - 1;
    model(Tensors{factor(1000), is_last ? factor(7) : at::Tensor(), at::Tensor()}).backward();
    expect_norm(model);
    EXPECT_FALSE(model.parameters()[2].grad().defined());
  }
}

TEST_F(GradientNorm, IsRefusedWhereItWasNotAskedFor) {
  DistributedDataParallel model(Factors(Sizes{3}));
  model(Tensors{factor(3)}).backward();
  EXPECT_SAYS(message_of<UsageError>([&] { model.gradient_norm(); }), ".gradient_norm = true");
}

TEST_F(GradientNorm, AskedForOnSomeRanksIsRefused) {
  NEEDS_RANKS(2);
  const auto build = [&] {
    DistributedDataParallel model(Factors(Sizes{3}), {.gradient_norm = rank_ == 0});
  };
  EXPECT_SAYS(message_of<UsageError>(build), "gradient_norm=false where");
}

}  // namespace
}  // namespace lockstep::testing
