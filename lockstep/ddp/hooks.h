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

/// The comm hooks that come with Lockstep, and what goes with them; one of your own: comm_hook.h.
namespace lockstep {

/// What DistributedDataParallel does without a hook, through the interface of hooks: for
/// comparison, and as the inner hook of others.
class AllReduceHook final : public CommHook {
 public:
  std::string describe() const override { return "all_reduce"; }
  std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override {
    return start_average(group, bucket.buffer);
  }
};

/// Gradients travel in 16 bits: they are divided by the number of ranks, rounded, and averaged in
/// that dtype by another hook. Counterpart of PyTorch's fp16_compress_hook, bf16_compress_hook and
/// their wrappers. Complex gradients, which bfloat16 cannot hold, go to the other hook, or the
/// all-reduce, as they are. Where nothing is to be wrapped the option exchange_dtype costs less: it
/// converts in the passes that copy and average.
class CompressHook final : public CommHook {
 public:
  /// `dtype`: kHalf or kBFloat16. `inner` averages what is compressed; null: an all-reduce.
  /// Errors: UsageError for another dtype, and for an `inner` that serves elsewhere.
  explicit CompressHook(at::ScalarType dtype, std::shared_ptr<CommHook> inner = nullptr);

  std::string describe() const override;
  bool keeps_replicas_equal() const override { return !inner_ || inner_->keeps_replicas_equal(); }
  std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override;

 private:
  at::ScalarType dtype_;
  std::shared_ptr<CommHook> inner_;
  std::vector<HookBucket> compressed_;  // by number
};

struct QuantizeOptions {
  /// How many elements share a scale and an offset; 0: all of a bucket. PyTorch's
  /// quantization_pertensor_hook has 0, its quantization_perchannel_hook 512.
  std::int64_t chunk_elements = 0;
};

/// Gradients travel as 8-bit integers, from each rank's smallest to its largest value: q of 0 to
/// 255 stands for minimum + q * (maximum - minimum) / 255. Every rank gathers those of all and
/// averages them in rank order, in float32. The error of an element is at most half a step of each
/// rank.
class QuantizeHook final : public CommHook {
 public:
  explicit QuantizeHook(const QuantizeOptions& options = {});

  std::string describe() const override;
  std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override;

 private:
  QuantizeOptions options_;
};

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

/// Exchanges no gradients: replicas drift apart. To measure what the exchange costs.
class NoopHook final : public CommHook {
 public:
  std::string describe() const override { return "noop"; }
  bool keeps_replicas_equal() const override { return false; }
  std::function<void()> start(const ProcessGroup&, const HookBucket&) override {
    return [] {};
  }
};

/// Names and defaults are those of torch.distributed's PostLocalSGDState.
struct PostLocalSgdOptions {
  /// From this step on gradients are averaged in the subgroup only; 0: from the first.
  std::int64_t start_local_sgd_iter = 0;
  /// Whether gradients are averaged in the subgroup at all.
  bool post_local_gradient_allreduce = true;
  /// Ranks that stay in step with each other, such as those of one machine. Empty: this rank alone.
  ProcessGroup subgroup = {};
};

/// Post-local SGD (Lin et al., ICLR 2020): averages gradients over all ranks at first, then among
/// few or none, while a PeriodicModelAverager averages the parameters from time to time. Between
/// two such averages replicas differ.
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

/// Names and defaults are those of torch.distributed's PeriodicModelAverager.
struct PeriodicModelAveragerOptions {
  /// Parameters are averaged every so many steps.
  std::int64_t period = 1;
  /// Steps before the first average.
  std::int64_t warmup_steps = 0;
  /// Empty: the default group.
  ProcessGroup process_group = {};
};

/// Averages parameters over all ranks from time to time: local SGD (Stich, ICLR 2019). Goes with
/// PostLocalSgdHook.
/// Threads: the training thread. Errors: from the constructor UsageError for a period that is none;
/// else as Work::wait.
class PeriodicModelAverager {
 public:
  explicit PeriodicModelAverager(const PeriodicModelAveragerOptions& options);

  /// After each step of the optimizer, on every rank: averages where it is time to.
  void average_parameters(const std::vector<at::Tensor>& parameters);

 private:
  PeriodicModelAveragerOptions options_;
  ProcessGroup group_;
  std::int64_t step_ = 0;
};

}  // namespace lockstep
