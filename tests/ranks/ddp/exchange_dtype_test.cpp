// Gradients of float32 that travel in float16 or bfloat16.
#include <cmath>
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

constexpr at::ScalarType kExchangeDtypes[] = {at::kHalf, at::kBFloat16};

class ExchangeDtype : public Conformance {
 protected:
  // Small whole numbers, also after a division by the number of ranks.
  at::Tensor whole_numbers(int rank, std::int64_t numel) const {
    return (at::arange(numel, at::kFloat).remainder(8) + 1) * ((rank + 1) * world_size_);
  }
  at::Tensor average_of_whole_numbers(std::int64_t numel) const {
    return (at::arange(numel, at::kFloat).remainder(8) + 1) * (world_size_ * (world_size_ + 1) / 2);
  }
  at::Tensor waves(int rank, std::int64_t numel) const {
    return at::sin(at::arange(numel, at::kFloat) * (rank + 1) + 1);
  }
};

TEST_F(ExchangeDtype, AveragesExactlyWhatItHoldsExactly) {
  for (const at::ScalarType dtype : kExchangeDtypes) {
    DistributedDataParallel model(Factors(Sizes{150'001, 3, 1000}), {.exchange_dtype = dtype});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      model(Tensors{whole_numbers(rank_, 150'001), whole_numbers(rank_, 3),
                    whole_numbers(rank_, 1000)})
          .backward();
      for (const at::Tensor& parameter : model.parameters()) {
        ASSERT_EQ(parameter.grad().scalar_type(), at::kFloat);
        EXPECT_TRUE(at::equal(parameter.grad(), average_of_whole_numbers(parameter.numel())));
      }
    }
  }
}

TEST_F(ExchangeDtype, RoundsEachGradientOnceAndAveragesInFloat32WhereMemoryIsShared) {
  NEEDS_RANKS(2);
  for (const at::ScalarType dtype : kExchangeDtypes) {
    DistributedDataParallel model(Factors(Sizes{150'001, 3}), {.exchange_dtype = dtype});
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      model(Tensors{waves(rank_, 150'001), waves(rank_, 3)}).backward();
      for (const at::Tensor& parameter : model.parameters()) {
        at::Tensor average = at::zeros({parameter.numel()});
        at::Tensor rounded = at::zeros({parameter.numel()});
        at::Tensor magnitude = at::zeros({parameter.numel()});
        for (int rank = 0; rank < world_size_; ++rank) {
          const at::Tensor gradient = waves(rank, parameter.numel());
          average += gradient / world_size_;
          rounded += gradient.to(dtype);
          magnitude += gradient.abs() / world_size_;
        }
        const at::Tensor actual = parameter.grad();
        EXPECT_TRUE(same_bits_everywhere({actual}));
        // One for the gradient; where the sum is in this dtype too, one more for each addend.
        const int roundings = group_.shares_memory() ? 1 : 1 + world_size_;
        const double unit = dtype == at::kHalf ? std::exp2(-11) : std::exp2(-8);
        const at::Tensor allowed = magnitude * (roundings * unit) + 1e-7;
        EXPECT_TRUE(((actual - average).abs() <= allowed).all().item<bool>());
        if (group_.shares_memory()) {
          EXPECT_TRUE(at::allclose(actual, rounded / world_size_, 1e-6, 1e-7));
        } else {
          EXPECT_TRUE(at::equal(actual, actual.to(dtype).to(at::kFloat)));
        }
      }
    }
  }
}

TEST_F(ExchangeDtype, LeavesOtherDtypesAsTheyAre) {
  for (const at::ScalarType other : {at::kDouble, at::kHalf}) {
    Factors module(Sizes{70'000, 3, 5});
    for (const std::size_t i : {0, 1}) {
      at::Tensor& parameter = module->factors[i];
      parameter.set_data(parameter.to(other));
    }
    // 1 + 2⁻⁹ is a float16, but no bfloat16.
    const at::Tensor gradient = at::full({70'000}, 1 + std::exp2(-9));
    DistributedDataParallel model(module, {.exchange_dtype = at::kBFloat16});
    model(Tensors{gradient, gradient.narrow(0, 0, 3), whole_numbers(rank_, 5)}).backward();
    const double tolerance = group_.shares_memory() || other == at::kDouble ? 1e-12 : 1e-3;
    EXPECT_EQ(module->factors[1].grad().scalar_type(), other);
    EXPECT_TRUE(at::allclose(module->factors[1].grad().to(at::kFloat), gradient[0], tolerance, 0));
    EXPECT_TRUE(at::allclose(module->factors[0].grad().to(at::kFloat), gradient, tolerance, 0));
    EXPECT_TRUE(at::equal(module->factors[2].grad(), average_of_whole_numbers(5)));
  }
}

// There are no complex numbers of bfloat16 parts; those of float16 parts have no arithmetic.
TEST_F(ExchangeDtype, LeavesComplexGradientsAsTheyAreAlsoByHook) {
  const std::int64_t sizes[] = {70'000, 3};
  for (const at::ScalarType dtype : kExchangeDtypes) {
    for (const DistributedDataParallelOptions& options :
         {DistributedDataParallelOptions{.gradient_norm = true, .exchange_dtype = dtype},
          DistributedDataParallelOptions{.comm_hook = std::make_shared<CompressHook>(dtype)},
          DistributedDataParallelOptions{.comm_hook = std::make_shared<CompressHook>(
                                             dtype, std::make_shared<AllReduceHook>())}}) {
      Factors module(Sizes{sizes[0], sizes[1], 5});
      for (const std::size_t i : {0, 1}) {
        at::Tensor& parameter = module->factors[i];
        parameter.set_data(parameter.to(at::kComplexFloat));
      }
      DistributedDataParallel model(module, options);
      for (int step = 0; step < 2; ++step) {
        model->zero_grad();
        const auto gradient_of = [&](int rank, std::int64_t numel) {
          return at::complex(waves(rank, numel), waves(rank + world_size_, numel));
        };
        at::Tensor loss = (module->factors[2] * whole_numbers(rank_, 5)).sum();
        for (const std::size_t i : {0, 1}) {
          loss =
              loss + at::real((module->factors[i] * at::conj(gradient_of(rank_, sizes[i]))).sum());
        }
        loss.backward();
        for (const std::size_t i : {0, 1}) {
          at::Tensor average = at::zeros({sizes[i]}, at::kComplexFloat);
          for (int rank = 0; rank < world_size_; ++rank) {
            average += gradient_of(rank, sizes[i]) / world_size_;
          }
          EXPECT_TRUE(at::allclose(module->factors[i].grad(), average, 1e-5, 1e-6));
        }
        EXPECT_TRUE(at::equal(module->factors[2].grad(), average_of_whole_numbers(5)));
      }
    }
  }
}

TEST_F(ExchangeDtype, GoesWithTheGradientNormWithoutSyncAndWithUnusedParameters) {
  for (const at::ScalarType dtype : kExchangeDtypes) {
    DistributedDataParallel model(Factors(Sizes{150'001, 3, 7, 9}),
                                  {.gradient_norm = true, .exchange_dtype = dtype});
    for (int round = 0; round < 3; ++round) {
      model->zero_grad(/*set_to_none=*/round != 1);
      const at::Tensor large = whole_numbers(rank_, 150'001);
      // The third is used by rank 0 alone, the last by none.
      const at::Tensor third = rank_ == 0 ? whole_numbers(0, 7) : at::Tensor();
      {
        const auto guard = model.no_sync();
        model(Tensors{large, at::Tensor(), at::Tensor(), at::Tensor()}).backward();
      }
      model(Tensors{large, whole_numbers(rank_, 3), third, at::Tensor()}).backward();
      const auto parameters = model.parameters();
      EXPECT_TRUE(at::equal(parameters[0].grad(), average_of_whole_numbers(150'001) * 2));
      EXPECT_TRUE(at::equal(parameters[1].grad(), average_of_whole_numbers(3)));
      EXPECT_TRUE(at::equal(parameters[2].grad(), whole_numbers(0, 7) / world_size_));
      EXPECT_FALSE(parameters[3].grad().defined());
      double squares = 0;
      for (int i = 0; i < 3; ++i) {
        squares += parameters[i].grad().to(at::kDouble).square().sum().item<double>();
      }
      const double norm = model.gradient_norm();
      EXPECT_NEAR(norm, std::sqrt(squares), 1e-9 * norm);
      EXPECT_TRUE(same_bits_everywhere({at::full({1}, norm, at::kDouble)}));
    }
  }
}

TEST_F(ExchangeDtype, OfAnotherKindOrThatDiffersBetweenRanksIsRefused) {
  const auto build = [&](std::optional<at::ScalarType> dtype) {
    return message_of<UsageError>(
        [&] { DistributedDataParallel model(Factors(Sizes{3}), {.exchange_dtype = dtype}); });
  };
  EXPECT_SAYS(build(at::kDouble), "exchange_dtype=Double is neither Half nor BFloat16");
  EXPECT_SAYS(build(at::kFloat), "exchange_dtype=Float is neither Half nor BFloat16");
  NEEDS_RANKS(2);
  EXPECT_SAYS(build(rank_ == 0 ? at::kHalf : at::kBFloat16), "exchange_dtype=BFloat16 where");
  EXPECT_SAYS(build(rank_ == 0 ? std::nullopt : std::optional(at::kHalf)),
              "exchange_dtype=Half where rank 0 has option exchange_dtype=unset");
}

}  // namespace
}  // namespace lockstep::testing
