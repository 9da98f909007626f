#include "lockstep/ddp/replica.h"

#include <cmath>

#include <torch/nn/module.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/ddp/broadcast_tensors.h"
#include "lockstep/ddp/gradient_reducer.h"
#include "lockstep/ddp/model_agreement.h"

namespace lockstep {
namespace {

constexpr double kBytesPerMb = 1024.0 * 1024.0;
constexpr double kDefaultBucketCapMb = 25;
constexpr double kFirstBucketCapMb = 1;

BucketCaps bucket_caps(const std::optional<double>& bucket_cap_mb, const ProcessGroup& group) {
  if (bucket_cap_mb && !(*bucket_cap_mb > 0 && std::isfinite(*bucket_cap_mb))) {
    throw UsageError(concat("DistributedDataParallel: bucket_cap_mb=", *bucket_cap_mb,
                            " is not a positive number of MiB"));
  }
  // A backend that knows what suits the machine needs no small first bucket.
  const std::int64_t preferred = group.bucket_bytes();
  if (!bucket_cap_mb && preferred > 0) return {.first_bytes = preferred, .bytes = preferred};
  const auto bytes = [](double mb) { return static_cast<std::int64_t>(mb * kBytesPerMb); };
  return {.first_bytes = bytes(bucket_cap_mb.value_or(kFirstBucketCapMb)),
          .bytes = bytes(bucket_cap_mb.value_or(kDefaultBucketCapMb))};
}

void check_exchange_dtype(const std::optional<at::ScalarType>& dtype) {
  if (!dtype || *dtype == at::kHalf || *dtype == at::kBFloat16) return;
  throw UsageError(concat("DistributedDataParallel: exchange_dtype=", c10::toString(*dtype),
                          " is neither Half nor BFloat16; leave it unset to exchange gradients as "
                          "they are"));
}

}  // namespace

Replica::Replica(std::shared_ptr<torch::nn::Module> module,
                 const DistributedDataParallelOptions& options)
    : module_(std::move(module)),
      group_(options.process_group ? options.process_group : default_process_group()),
      forward_sync_buffers_(options.forward_sync_buffers),
      has_gradient_norm_(options.gradient_norm) {
  if (!module_) throw UsageError("DistributedDataParallel: the module is null");
  const BucketCaps caps = bucket_caps(options.bucket_cap_mb, group_);
  check_exchange_dtype(options.exchange_dtype);
  check_models_agree(
      group_, *module_,
      concat("options bucket_cap_mb ", caps.bytes / kBytesPerMb, " first ",
             caps.first_bytes / kBytesPerMb, " forward_sync_buffers ", forward_sync_buffers_,
             " gradient_norm ", options.gradient_norm, " exchange_dtype ",
             options.exchange_dtype ? c10::toString(*options.exchange_dtype) : "unset"));

  std::vector<at::Tensor> trained;
  std::vector<std::string> names;
  for (const auto& item : module_->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    if (!at::isFloatingType(item.value().scalar_type())) {
      throw UsageError(concat("DistributedDataParallel on rank ", group_.rank(), ": parameter '",
                              item.key(), "' has dtype ", c10::toString(item.value().scalar_type()),
                              "; gradients of real floating-point dtypes can be exchanged"));
    }
    trained.push_back(item.value());
    names.push_back(item.key());
  }
  if (trained.empty()) {
    throw UsageError(concat("DistributedDataParallel on rank ", group_.rank(),
                            ": no parameter of the module requires a gradient; there is nothing to "
                            "keep in step, use the module as it is"));
  }
  std::vector<at::Tensor> state = module_->parameters();
  const auto buffers = module_->buffers();
  state.insert(state.end(), buffers.begin(), buffers.end());
  broadcast_tensors(group_, state, 0);
  if (group_.world_size() == 1 && !options.gradient_norm) return;
  reducer_ = std::make_unique<GradientReducer>(
      std::move(trained), std::move(names), group_,
      GradientReducer::Options{.caps = caps,
                               .gradient_norm = options.gradient_norm,
                               .exchange_dtype = options.exchange_dtype,
                               .after_exchange = [this] {
                                 if (module_->is_training()) sync_buffers();
                               }});
}

Replica::~Replica() = default;

std::vector<at::Tensor> Replica::parameters() const {
  return module_->parameters();
}

double Replica::gradient_norm() const {
  if (!has_gradient_norm_) {
    throw UsageError(concat("DistributedDataParallel on rank ", group_.rank(),
                            ": gradient_norm() was not asked for; construct it with "
                            "{.gradient_norm = true}"));
  }
  const auto norm = reducer_->gradient_norm();
  if (!norm) {
    throw UsageError(concat("DistributedDataParallel on rank ", group_.rank(),
                            ": gradient_norm() before a backward pass has exchanged gradients; "
                            "call it after backward() outside no_sync()"));
  }
  return *norm;
}

void Replica::before_forward() {
  if (!reducer_) return;
  if (reducer_->in_backward()) {
    throw UsageError(
        concat("DistributedDataParallel on rank ", group_.rank(),
               ": the backward pass before this forward did not end; after an error in "
               "backward() build the wrapper anew"));
  }
  reducer_->check_parameters();
  reducer_->before_forward();
  // Evaluation communicates only after a training forward that no backward followed.
  if ((module_->is_training() || buffers_differ_) && reducer_->sync()) sync_buffers();
  buffers_differ_ = buffers_differ_ || module_->is_training();
}

void Replica::after_forward() {
  if (reducer_) reducer_->after_forward();
}

void Replica::sync_buffers() {
  buffers_differ_ = false;
  if (forward_sync_buffers_) broadcast_tensors(group_, module_->buffers(), 0);
}

NoSyncGuard::NoSyncGuard(Replica& replica) : reducer_(replica.reducer_.get()) {
  if (!reducer_) return;
  before_ = reducer_->sync();
  reducer_->set_sync(false);
}

NoSyncGuard::~NoSyncGuard() {
  if (reducer_) reducer_->set_sync(before_);
}

}  // namespace lockstep
