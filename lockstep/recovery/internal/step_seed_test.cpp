#include "lockstep/recovery/internal/step_seed.h"

#include <cmath>
#include <set>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

at::Tensor drawn(std::uint64_t seed, int rank, std::int64_t step) {
  seed_step(seed, rank, step, at::kCPU);
  return at::cat({at::rand({7}), at::randn({1000})});
}

TEST(StepSeed, DrawsTheSameNumbersForTheSameStep) {
  const at::Tensor first = drawn(1, 2, 3);
  at::rand({1});
  at::randn({1});  // The generator keeps the second number of a pair.
  EXPECT_TRUE(drawn(1, 2, 3).equal(first));
}

TEST(StepSeed, DrawsOtherNumbersForAnotherSeedRankOrStep) {
  std::set<float> firsts;
  int draws = 0;
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32U}) {
    for (int rank = 0; rank < 4; ++rank) {
      for (std::int64_t step = 0; step < 50; ++step, ++draws) {
        firsts.insert(drawn(seed, rank, step).mean().item<float>());
      }
    }
  }
  // Means of 1,007 numbers in single precision: two may be the same by chance.
  EXPECT_GE(static_cast<int>(firsts.size()), draws - 2);
}

TEST(StepSeed, DrawsUniformNumbersFromEachWordOfTheState) {
  constexpr std::int64_t kWords = 624;
  constexpr int kSteps = 2000;
  at::Tensor sum = at::zeros({2 * kWords}, at::kDouble);
  at::Tensor products = at::zeros({2 * kWords - 1}, at::kDouble);
  for (int step = 0; step < kSteps; ++step) {
    seed_step(0, 0, step, at::kCPU);
    const at::Tensor centred = at::rand({2 * kWords}).to(at::kDouble) - 0.5;
    sum += centred;
    products += centred.slice(0, 0, -1) * centred.slice(0, 1);
  }
  // Each is about normal: six standard deviations.
  const double deviation = std::sqrt(kSteps / 12.0);
  EXPECT_LT(sum.abs().max().item<double>(), 6 * deviation);
  EXPECT_LT(products.abs().max().item<double>(), 6 * std::sqrt(static_cast<double>(kSteps)) / 12);
}

TEST(StepSeed, TellsTheSeedItWasGiven) {
  seed_step(0, 0, 0, at::kCPU);
  const auto first = at::detail::getDefaultCPUGenerator().current_seed();
  seed_step(0, 0, 1, at::kCPU);
  EXPECT_NE(at::detail::getDefaultCPUGenerator().current_seed(), first);
}

}  // namespace
}  // namespace lockstep
