#include "lockstep/nn/sync_batch_norm.h"

#include <ATen/ops/batch_norm.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/nn/internal/sync_batch_norm_function.h"

namespace lockstep {
namespace {

torch::nn::BatchNormOptions base_options(std::int64_t num_features,
                                         const SyncBatchNormOptions& options) {
  if (num_features < 1) {
    throw UsageError(concat("SyncBatchNorm: num_features=", num_features,
                            " is not a number of channels; it must be 1 or more"));
  }
  return torch::nn::BatchNormOptions(num_features)
      .eps(options.eps)
      .momentum(options.momentum)
      .affine(options.affine)
      .track_running_stats(options.track_running_stats);
}

std::shared_ptr<const SyncLayer> make_layer(const ProcessGroup& group) {
  if (!needs_layer_group(group)) return nullptr;
  const auto layers = layer_group(group);
  const auto number = layers->number_layer();
  return std::make_shared<const SyncLayer>(
      SyncLayer{.layers = layers, .number = number, .name = concat("number ", number)});
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(std::int64_t num_features, const SyncBatchNormOptions& given)
    : NormImplBase(base_options(num_features, given)),
      layer_(make_layer(given.process_group ? given.process_group : default_process_group())) {}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  const double momentum = count_batch();
  if (is_training() && layer_) {
    return sync_batch_norm(layer_, {.input = input,
                                    .weight = weight,
                                    .bias = bias,
                                    .running_mean = running_mean,
                                    .running_var = running_var,
                                    .momentum = momentum,
                                    .eps = options.eps()});
  }
  if (is_training() && input.numel() == input.size(1)) {
    throw UsageError("SyncBatchNorm: the batch has one value per channel; training needs 2");
  }
  return at::batch_norm(input, weight, bias, running_mean, running_var,
                        is_training() || !options.track_running_stats(), momentum, options.eps(),
                        /*cudnn_enabled=*/true);
}

// Returns the weight of this batch in the running statistics.
double SyncBatchNormImpl::count_batch() {
  if (!is_training() || !num_batches_tracked.defined()) return options.momentum().value_or(0.0);
  num_batches_tracked += 1;
  if (options.momentum()) return *options.momentum();
  return 1 / num_batches_tracked.item<double>();
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (input.dim() >= 2) return;
  throw UsageError(concat("SyncBatchNorm: the input has ", input.dim(),
                          " dimensions; it takes [N, C] and more"));
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "lockstep::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ")";
}

}  // namespace lockstep
