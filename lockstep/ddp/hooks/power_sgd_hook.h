#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include <ATen/core/Generator.h>

#include "lockstep/ddp/comm_hook.h"

namespace lockstep {

/// Names and defaults are those of torch.distributed's PowerSGDState.
struct PowerSgdOptions {
  std::int64_t matrix_approximation_rank = 1;
  /// Until that many steps are done gradients are averaged as they are: while they change much, an
  /// approximation harms most. At least 2 with error feedback or warm start.
  std::int64_t start_power_sgd_iter = 1000;
  /// A gradient is sent as it is where its approximation would not be smaller by this factor.
  double min_compression_rate = 2;
  /// What an approximation leaves out is added to the next step's gradient.
  bool use_error_feedback = true;
  /// Each step begins with the last one's result instead of random numbers.
  bool warm_start = true;
  /// Orthogonalize by Gram and Schmidt, with this added to each norm, against columns of zeros; 0:
  /// by QR.
  double orthogonalization_epsilon = 0;
  std::int64_t random_seed = 0;
  /// Take the whole bucket for one square matrix instead of a matrix a gradient: faster, less
  /// exact.
  bool batched = false;
  /// What losses are multiplied by, the same on every rank: [&] { return scaler.get_scale(); } with
  /// a GradScaler. What an approximation left out of gradients of another scale is converted.
  /// Unset: always the same.
  std::function<double()> loss_scale = {};
};

/// Averages an approximation of low rank of each gradient that has more than one dimension:
/// PowerSGD (Vogels et al., NeurIPS 2019, algorithm 1 and 2). Approximations come from sums over
/// all ranks, so that all have the same; machines of different kinds may round them differently. A
/// complex gradient is approximated as a real one with twice the columns. Where a gradient of a
/// bucket is infinite or no number on any rank, all of the bucket's approximations are NaN on all
/// ranks, for GradScaler to leave the step out; the next one begins without memory of it.
/// Memory: a copy of all gradients with error feedback. Errors: from the constructor UsageError for
/// options that cannot work.
class PowerSgdHook final : public CommHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options = {});

  std::string describe() const override;
  std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override;

  /// How many elements were to be averaged since compression began, and how many travelled.
  std::int64_t elements_before() const { return elements_before_; }
  std::int64_t elements_after() const { return elements_after_; }

 private:
  struct BucketState {
    std::int64_t step = 0;
    at::Tensor error;   // as the bucket; while it is averaged, what it was before
    double scale = 1;   // that of the losses of which the error is
    at::Tensor left;    // all P, one after the other
    at::Tensor right;   // all Q
    at::Tensor rest;    // gradients that are sent as they are
    at::Tensor square;  // the bucket and padding, where it is one matrix
  };
  struct Factors {
    at::Tensor matrix;  // a part of the bucket
    at::Tensor p;
    at::Tensor q;
  };

  std::vector<at::Tensor> matrices_of(BucketState& state, const HookBucket& bucket);
  std::vector<Factors> factors_of(const ProcessGroup& group, BucketState& state,
                                  const std::vector<at::Tensor>& matrices);
  void add_error(BucketState& state, const at::Tensor& buffer) const;
  bool average_factors(const ProcessGroup& group, BucketState& state,
                       const std::vector<Factors>& factors) const;
  bool pays(const at::Tensor& matrix) const;
  void orthogonalize(const at::Tensor& matrix) const;

  PowerSgdOptions options_;
  at::Generator random_;
  std::deque<BucketState> states_;  // by number; what finishes a bucket refers to its own
  std::int64_t elements_before_ = 0;
  std::int64_t elements_after_ = 0;
};

}  // namespace lockstep
