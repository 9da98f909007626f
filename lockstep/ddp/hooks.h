#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/comm_hook.h"

/// Lockstep's comm hooks; comm_hook.h has the interface for your own.
namespace lockstep {

/// Averages gradients by an all-reduce, as DistributedDataParallel does without a hook. For
/// comparison, and as the inner hook of others.
class AllReduceHook final : public CommHook {
 public:
  std::string describe() const override { return "all_reduce"; }
  std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override {
    return start_average(group, bucket.buffer);
  }
};

/// Exchanges gradients in 16 bits: divides them by the number of ranks, rounds them, and lets
/// another hook average them in that dtype. Counterpart of PyTorch's fp16_compress_hook,
/// bf16_compress_hook and their wrappers. Complex gradients are not compressed. Without an inner
/// hook the option exchange_dtype is faster: it converts in the passes that copy and average.
class CompressHook final : public CommHook {
 public:
  /// `dtype`: kHalf or kBFloat16. `inner` averages the compressed gradients; null: an all-reduce.
  /// Errors: UsageError for another dtype, and for an `inner` that serves another model or hook.
  explicit CompressHook(at::ScalarType dtype, std::shared_ptr<CommHook> inner = nullptr);

  std::string describe() const override;
  bool keeps_replicas_equal() const override { return !inner_ || inner_->keeps_replicas_equal(); }
  std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override;

 private:
  at::ScalarType dtype_;
  std::shared_ptr<CommHook> inner_;
  std::vector<HookBucket> compressed_;  // by number
};

/// Options of QuantizeHook.
struct QuantizeOptions {
  /// Number of elements that share a scale and an offset; 0: the whole bucket. PyTorch's
  /// quantization_pertensor_hook uses 0, its quantization_perchannel_hook 512.
  std::int64_t chunk_elements = 0;
};

/// Exchanges gradients as 8-bit integers between each rank's minimum and maximum: q, 0 to 255,
/// stands for minimum + q * (maximum - minimum) / 255. Every rank gathers all ranks' integers and
/// averages them in rank order, in float32. The error of an element is at most the mean over ranks
/// of half a quantization step.
class QuantizeHook final : public CommHook {
 public:
  explicit QuantizeHook(const QuantizeOptions& options = {});

  std::string describe() const override;
  std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override;

 private:
  QuantizeOptions options_;
};

/// Options of PowerSgdHook. Names and defaults are those of torch.distributed's PowerSGDState.
struct PowerSgdOptions {
  /// Rank of the approximation.
  std::int64_t matrix_approximation_rank = 1;
  /// Number of steps at the start in which gradients are averaged uncompressed: while they change
  /// much, an approximation harms most. At least 2 with error feedback or warm start.
  std::int64_t start_power_sgd_iter = 1000;
  /// A gradient is sent uncompressed unless its approximation is smaller by this factor.
  double min_compression_rate = 2;
  /// Add the error of the approximation to the next step's gradient.
  bool use_error_feedback = true;
  /// Begin each step with the last step's result instead of random numbers.
  bool warm_start = true;
  /// Orthogonalize by Gram-Schmidt, with this added to each norm, against columns of zeros; 0: by
  /// QR.
  double orthogonalization_epsilon = 0;
  /// Seed of the random start, the same on every rank.
  std::int64_t random_seed = 0;
  /// Approximate the whole bucket as one square matrix instead of one matrix per gradient: faster,
  /// less exact.
  bool batched = false;
  /// The loss scale, equal on every rank: [&] { return scaler.get_scale(); } with a GradScaler.
  /// Errors that were kept at another scale are converted. Unset: the scale is constant.
  std::function<double()> loss_scale = {};
};

/// Averages a low-rank approximation of each gradient of more than one dimension. Approximations
/// come from sums over all ranks, so all ranks have the same; machines of different processor types
/// may round differently. A complex gradient is approximated as a real one with twice the columns.
/// If a gradient of a bucket is infinite or NaN on any rank, all approximations of the bucket are
/// NaN on all ranks, so GradScaler skips the step; the next one starts without kept errors. With
/// error feedback it keeps a copy of all gradients.
/// Algorithm: PowerSGD (Vogels et al., NeurIPS 2019, algorithms 1 and 2).
/// Errors: UsageError from the constructor for invalid options.
class PowerSgdHook final : public CommHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options = {});

  std::string describe() const override;
  std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override;

  /// Number of elements to average since compression began.
  std::int64_t elements_before() const { return elements_before_; }
  /// Number of elements that were exchanged for them.
  std::int64_t elements_after() const { return elements_after_; }

 private:
  struct BucketState {
    std::int64_t step = 0;
    at::Tensor error;   // of the bucket's size; during the average, the bucket before it
    double scale = 1;   // loss scale of `error`
    at::Tensor left;    // all P, one after the other
    at::Tensor right;   // all Q
    at::Tensor rest;    // uncompressed gradients
    at::Tensor square;  // the bucket and padding, if it is one matrix
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
  std::deque<BucketState> states_;  // by number; a running exchange refers to its own
  std::int64_t elements_before_ = 0;
  std::int64_t elements_after_ = 0;
};

/// Exchanges no gradients, so replicas diverge. For measuring the cost of the exchange.
class NoopHook final : public CommHook {
 public:
  std::string describe() const override { return "noop"; }
  bool keeps_replicas_equal() const override { return false; }
  std::function<void()> start(const ProcessGroup&, const HookBucket&) override {
    return [] {};
  }
};

/// Options of PostLocalSgdHook. Names and defaults are those of torch.distributed's
/// PostLocalSGDState.
struct PostLocalSgdOptions {
  /// Step from which gradients are averaged only in the subgroup.
  std::int64_t start_local_sgd_iter = 0;
  /// Whether gradients are averaged in the subgroup; if false, not at all.
  bool post_local_gradient_allreduce = true;
  /// Ranks whose gradients are averaged, such as those of one machine. Empty: only this rank.
  ProcessGroup subgroup = {};
};

/// Averages gradients over all ranks first, later over a subgroup or not at all, while a
/// PeriodicModelAverager averages the parameters periodically. Replicas differ between two of its
/// averages.
/// Algorithm: post-local SGD (Lin et al., ICLR 2020).
class PostLocalSgdHook final : public CommHook {
 public:
  /// Errors: UsageError for a negative start_local_sgd_iter.
  explicit PostLocalSgdHook(const PostLocalSgdOptions& options);

  std::string describe() const override;
  bool keeps_replicas_equal() const override { return false; }
  std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override;

 private:
  PostLocalSgdOptions options_;
  std::vector<std::int64_t> steps_;  // of each bucket
};

/// Options of PeriodicModelAverager. Names and defaults are those of torch.distributed's.
struct PeriodicModelAveragerOptions {
  /// Steps between two averages.
  std::int64_t period = 1;
  /// Steps before the first average.
  std::int64_t warmup_steps = 0;
  /// Empty: the default group.
  ProcessGroup process_group = {};
};

/// Averages parameters over all ranks periodically. Used with PostLocalSgdHook.
/// Algorithm: local SGD (Stich, ICLR 2019).
/// Threads: call from the training thread.
/// Errors: UsageError from the constructor for a period below 1 or warmup_steps below 0; else see
/// Work::wait.
class PeriodicModelAverager {
 public:
  explicit PeriodicModelAverager(const PeriodicModelAveragerOptions& options);

  /// Counts a step and averages the parameters if it is due. Call it after each step of the
  /// optimizer, on every rank.
  void average_parameters(const std::vector<at::Tensor>& parameters);

 private:
  PeriodicModelAveragerOptions options_;
  ProcessGroup group_;
  std::int64_t step_ = 0;
};

}  // namespace lockstep
