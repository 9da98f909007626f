// Clipping where parameters are spread over ranks; elsewhere it communicates nothing.
#include "lockstep/optim/clip_grad.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "tests/ranks/factors.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

class ClipGrad : public Conformance {
 protected:
  at::Tensor gradient_of(int rank) const {
    return at::sin(at::arange(101 + rank, at::kFloat) * (rank + 1));
  }
  static at::Tensor parameter_with(const at::Tensor& gradient) {
    at::Tensor parameter = at::zeros_like(gradient).requires_grad_();
    parameter.mutable_grad() = gradient;
    return parameter;
  }
};

TEST_F(ClipGrad, CountsTheParametersOfAllRanks) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < world_size_; ++rank) all.push_back(gradient_of(rank));
  for (const double norm_type : {2.0, 1.0, 3.0, std::numeric_limits<double>::infinity()}) {
    const Tensors own{parameter_with(gradient_of(rank_))};
    const double expected =
        at::linalg_vector_norm(at::cat(all).to(at::kDouble), norm_type).item().toDouble();
    const ClipGradOptions options{.norm_type = norm_type, .process_group = group_};
    const double norm = clip_grad_norm_(own, expected / 4, options);
    EXPECT_NEAR(norm, expected, 1e-5 * expected);
    EXPECT_NEAR(get_total_norm(own, options), expected / 4, 1e-5 * expected);
    EXPECT_TRUE(same_bits_everywhere({at::full({1}, norm, at::kDouble)}));
  }
}

TEST_F(ClipGrad, ARankWithoutParametersTakesPart) {
  Tensors own;
  if (rank_ == 0) own.push_back(parameter_with(at::full({4}, 2.0)));
  EXPECT_EQ(clip_grad_norm_(own, 1, {.process_group = group_}), 4);
}

TEST_F(ClipGrad, ANanOfAnyRankIsTheNormOfAll) {
  for (const double norm_type : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
    for (int rank = 0; rank < world_size_; ++rank) {
      const Tensors own{parameter_with(at::full({3}, rank == rank_ ? NAN : 1.0F))};
      EXPECT_TRUE(
          std::isnan(get_total_norm(own, {.norm_type = norm_type, .process_group = group_})))
          << norm_type << " of rank " << rank;
    }
  }
}

TEST_F(ClipGrad, TakesTheNormThatTheExchangeHasWorkedOut) {
  DistributedDataParallel model(Factors(Sizes{1009, 3}), {.gradient_norm = true});
  model(Tensors{at::sin(at::arange(1009, at::kFloat) + rank_), at::ones({3})}).backward();
  const double norm = model.gradient_norm();
  EXPECT_NEAR(get_total_norm(model.parameters()), norm, 1e-6 * norm);
  clip_grads_with_norm_(model.parameters(), norm / 2, norm);
  EXPECT_NEAR(get_total_norm(model.parameters()), norm / 2, 1e-6 * norm);
  EXPECT_TRUE(same_bits_everywhere({model.parameters()[0].grad()}));
}

}  // namespace
}  // namespace lockstep::testing
