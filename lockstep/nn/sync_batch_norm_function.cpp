#include "lockstep/nn/sync_batch_norm_function.h"

#include <optional>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/nn/channel_statistics.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// What backward will do on this rank: decided in forward, where ranks can still compare.
using Backward = double;
constexpr Backward kNoBackward = 0;
constexpr Backward kParametersOnly = 1;
constexpr Backward kExchanges = 2;

struct BatchStatistics {
  double count = 0;
  bool backward_exchanges = false;
  at::Tensor mean;          // [C], float32 or float64, as all below
  at::Tensor variance;      // biased: what the batch is normalized by
  at::Tensor unbiased_var;  // float64; what running_var takes in
};

// The dtype to calculate in: batch_norm's own.
at::ScalarType calculation_dtype(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::int64_t values_per_channel(const at::Tensor& input) {
  std::int64_t count = input.size(0);
  for (std::int64_t dim = 2; dim < input.dim(); ++dim) count *= input.size(dim);
  return count;
}

// Of shape [1, C, 1, …], to broadcast over `input`.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(input.dim(), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

std::vector<std::int64_t> all_dims_but_channels(const at::Tensor& input) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

std::optional<at::Tensor> cast(const std::optional<at::Tensor>& tensor, at::ScalarType dtype) {
  return tensor ? std::optional(tensor->to(dtype)) : std::nullopt;
}

std::string place(const SyncLayer& layer) {
  return concat("SyncBatchNorm '", layer.name, "' on rank ", layer.layers->group.rank());
}

// Runs an exchange. Ranks that call another one are elsewhere in their program.
template <class Exchange>
void exchange(const SyncLayer& layer, Exchange&& action) {
  try {
    action(layer.layers->group);
  } catch (const UsageError& error) {
    throw UsageError(concat(place(layer),
                            ": not all ranks are in the same pass through the same module with "
                            "the same number of channels: ",
                            error.what()));
  }
}

// ---- the statistics of all ranks' batches ----

// A message is this, then the means of all channels, then their sums of squared deviations.
enum Header { kLayer, kChannels, kCount, kBackward, kHeaderSize };

at::Tensor own_message(const SyncLayer& layer, const at::Tensor& input, std::int64_t channels,
                       Backward backward) {
  at::Tensor message = at::zeros({kHeaderSize + 2 * channels}, at::kDouble);
  auto* header = message.mutable_data_ptr<double>();
  const std::int64_t count = values_per_channel(input);
  header[kLayer] = static_cast<double>(layer.number);
  header[kChannels] = static_cast<double>(input.size(1));
  header[kCount] = static_cast<double>(count);
  header[kBackward] = backward;
  if (count == 0 || input.size(1) != channels) return message;
  // The running statistics given here are not used, but tell the dtype to calculate in.
  const auto options = input.options().dtype(calculation_dtype(input));
  const auto [mean, variance] = at::batch_norm_update_stats(
      input, at::zeros({channels}, options), at::zeros({channels}, options), /*momentum=*/0);
  message.narrow(0, kHeaderSize, channels).copy_(mean);
  message.narrow(0, kHeaderSize + channels, channels)
      .copy_(variance.to(at::kDouble).mul_(static_cast<double>(count)));
  return message;
}

void check_headers(const SyncLayer& layer, const double* messages, std::int64_t stride,
                   std::int64_t channels) {
  const int world_size = layer.layers->group.world_size();
  double count = 0;
  bool exchanges = false;
  int without_backward = -1;
  for (int rank = 0; rank < world_size; ++rank) {
    const double* header = messages + rank * stride;
    if (header[kLayer] != static_cast<double>(layer.number)) {
      throw UsageError(concat(place(layer), ": rank ", rank, " runs another SyncBatchNorm, number ",
                              header[kLayer], " where this is number ", layer.number,
                              "; all ranks must run the same modules in the same order"));
    }
    if (header[kChannels] != static_cast<double>(channels)) {
      throw UsageError(concat(place(layer), ": the input of rank ", rank, " has ",
                              header[kChannels], " channels, the module ", channels,
                              "; give it inputs of shape [N, ", channels, ", ...]"));
    }
    count += header[kCount];
    exchanges = exchanges || header[kBackward] == kExchanges;
    if (header[kBackward] == kNoBackward) without_backward = rank;
  }
  if (count < 2) {
    throw UsageError(concat(place(layer), ": the batches of all ranks have ", count,
                            " values per channel together; training needs at least 2"));
  }
  if (exchanges && without_backward >= 0) {
    throw UsageError(concat(place(layer), ": rank ", without_backward,
                            " runs forward without gradients, others with them, and would not be "
                            "there in backward; use NoGradGuard on all ranks or on none"));
  }
}

BatchStatistics batch_statistics(const SyncLayer& layer, const at::Tensor& input,
                                 std::int64_t channels, Backward backward) {
  const ProcessGroup& group = layer.layers->group;
  const at::Tensor message = own_message(layer, input, channels, backward).to(group.device());
  const std::int64_t stride = message.numel();
  const at::Tensor on_device = at::empty({group.world_size() * stride}, message.options());
  exchange(layer,
           [&](const ProcessGroup& ranks) { ranks.all_gather_into_tensor(on_device, message); });
  const at::Tensor all = on_device.to(at::kCPU);
  const auto* messages = all.const_data_ptr<double>();
  check_headers(layer, messages, stride, channels);

  BatchStatistics result;
  at::Tensor values = at::empty({3, channels}, at::kDouble);
  auto* mean = values.mutable_data_ptr<double>();
  auto* variance = mean + channels;
  auto* unbiased_var = variance + channels;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const double* header = messages + rank * stride;
    result.count += header[kCount];
    result.backward_exchanges = result.backward_exchanges || header[kBackward] == kExchanges;
  }
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    ChannelStatistics total;
    for (int rank = 0; rank < group.world_size(); ++rank) {  // in rank order: the same bits on all
      const double* header = messages + rank * stride;
      total = combine(total, {.count = header[kCount],
                              .mean = header[kHeaderSize + channel],
                              .squares = header[kHeaderSize + channels + channel]});
    }
    mean[channel] = total.mean;
    variance[channel] = total.squares / total.count;
    unbiased_var[channel] = total.squares / (total.count - 1);
  }
  values = values.to(input.device());
  result.mean = values[0].to(calculation_dtype(input));
  result.variance = values[1].to(calculation_dtype(input));
  result.unbiased_var = values[2];
  return result;
}

void update_running(const at::Tensor& running, const at::Tensor& batch, double momentum) {
  if (!running.defined()) return;
  const c10::NoGradGuard no_grad;
  running.copy_(running.to(at::kDouble).mul(1 - momentum).add_(batch, momentum));
}

// ---- backward ----

struct Call : torch::CustomClassHolder {
  std::shared_ptr<const SyncLayer> layer;
  double count = 0;  // values per channel on all ranks
  double eps = 0;
  bool backward_exchanges = false;
};

// Sums `values` over ranks, in float64. The layer's number travels along: where ranks are in
// different layers the sum of its squares differs from what it would be.
at::Tensor sum_over_ranks(const SyncLayer& layer, const at::Tensor& values) {
  const ProcessGroup& group = layer.layers->group;
  const std::int64_t numel = values.numel();
  const at::Tensor message = at::empty({numel + 2}, values.options().dtype(at::kDouble));
  const auto number = static_cast<double>(layer.number);
  message.narrow(0, 0, numel).copy_(values.reshape({-1}));
  message[numel].fill_(number);
  message[numel + 1].fill_(number * number);
  const at::Tensor sums = message.to(group.device());
  exchange(layer, [&](const ProcessGroup& ranks) { ranks.all_reduce(sums); });
  const at::Tensor check = sums.narrow(0, numel, 2).to(at::kCPU);
  const auto* sum = check.const_data_ptr<double>();
  if (sum[0] != number * group.world_size() || sum[1] != number * number * group.world_size()) {
    throw UsageError(concat(place(layer),
                            ": another rank is in the backward of another SyncBatchNorm; all ranks "
                            "must build the same graph"));
  }
  return sums.narrow(0, 0, numel).view(values.sizes()).to(values.device()).to(values.dtype());
}

// The sum over ranks as a function: what each rank makes of it flows back to all of them.
struct SumOverRanks : Function<SumOverRanks> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& values,
                            const c10::intrusive_ptr<Call>& call) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return sum_over_ranks(*call->layer, values);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto call = context->saved_data["call"].toCapsule();
    return {SumOverRanks::apply(gradients[0], c10::static_intrusive_pointer_cast<Call>(call)),
            at::Tensor()};
  }
};

struct Gradients {
  at::Tensor input;
  at::Tensor weight;
  at::Tensor bias;
};

// All tensors in the dtype to calculate in. mean and variance are those of all ranks' batches.
Gradients gradients_of(const Call& call, const at::Tensor& gradient, const at::Tensor& input,
                       const std::optional<at::Tensor>& weight, const at::Tensor& mean,
                       const at::Tensor& variance) {
  Gradients result;
  const at::Tensor inverse_std =
      variance.to(at::kDouble).add(call.eps).rsqrt_().to(variance.scalar_type());
  if (gradient.numel() == 0) {
    result.weight = at::zeros_like(mean);
    result.bias = at::zeros_like(mean);
  } else {
    // The sums of dy·x̂ and of dy on this rank.
    std::tie(std::ignore, result.weight, result.bias) =
        at::native_batch_norm_backward(gradient, input, weight, {}, {}, mean, inverse_std,
                                       /*train=*/true, call.eps, {false, true, true});
  }
  if (!call.backward_exchanges) return result;
  const at::Tensor means =
      sum_over_ranks(*call.layer, at::stack({result.weight, result.bias})).div_(call.count);
  if (gradient.numel() == 0) {
    result.input = at::empty_like(gradient);
    return result;
  }
  // dx = w/σ · (dy - mean(dy) - x̂ · mean(dy·x̂)), and what is subtracted is a batch norm.
  const at::Tensor scale = weight ? inverse_std * *weight : inverse_std;
  result.input = std::get<0>(at::native_batch_norm(input, means[0] * scale.neg(),
                                                   means[1] * scale.neg(), mean, variance,
                                                   /*training=*/false, 0, call.eps));
  result.input.addcmul_(gradient, per_channel(scale, input));
  return result;
}

// The same out of functions that autograd can differentiate again.
Gradients differentiable_gradients_of(const c10::intrusive_ptr<Call>& call,
                                      const at::Tensor& gradient, const at::Tensor& input,
                                      const std::optional<at::Tensor>& weight, at::Tensor mean,
                                      at::Tensor variance) {
  const auto dims = all_dims_but_channels(input);
  const auto sum = [&](const at::Tensor& values) { return values.sum(dims); };
  if (call->backward_exchanges) {
    mean = SumOverRanks::apply(sum(input), call) / call->count;
    const at::Tensor deviation = input - per_channel(mean, input);
    variance = SumOverRanks::apply(sum(deviation * deviation), call) / call->count;
  }
  const at::Tensor inverse_std = at::rsqrt(variance + call->eps);
  const at::Tensor normalized =
      (input - per_channel(mean, input)) * per_channel(inverse_std, input);
  Gradients result;
  result.weight = sum(gradient * normalized);
  result.bias = sum(gradient);
  if (!call->backward_exchanges) return result;
  const at::Tensor means =
      SumOverRanks::apply(at::stack({result.weight, result.bias}), call) / call->count;
  const at::Tensor scale = weight ? inverse_std * *weight : inverse_std;
  result.input =
      (gradient - per_channel(means[1], input) - normalized * per_channel(means[0], input)) *
      per_channel(scale, input);
  return result;
}

struct Normalize : Function<Normalize> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& mean,
                            const at::Tensor& variance, const c10::intrusive_ptr<Call>& call) {
    context->save_for_backward(
        {input, weight.value_or(at::Tensor()), bias.value_or(at::Tensor()), mean, variance});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    if (input.numel() == 0) return at::empty_like(input);
    const auto dtype = calculation_dtype(input);
    return std::get<0>(at::native_batch_norm(input, cast(weight, dtype), cast(bias, dtype), mean,
                                             variance, /*training=*/false, 0, call->eps));
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& bias = saved[2];
    const auto call =
        c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
    const auto dtype = calculation_dtype(input);
    const at::Tensor gradient = outputs[0].to(dtype);
    const bool again = c10::GradMode::is_enabled();
    const Gradients result =
        again ? differentiable_gradients_of(call, gradient, input.to(dtype),
                                            cast(if_defined(weight), dtype), saved[3], saved[4])
              : gradients_of(*call, gradient, input.to(dtype), cast(if_defined(weight), dtype),
                             saved[3], saved[4]);
    const auto like = [](const at::Tensor& value, const at::Tensor& other) {
      return other.defined() && value.defined() ? value.to(other.scalar_type()) : at::Tensor();
    };
    return {like(result.input, input),
            like(result.weight, weight),
            like(result.bias, bias),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

Backward backward_of(const BatchNormArguments& arguments) {
  const auto takes_gradient = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  };
  if (!c10::GradMode::is_enabled()) return kNoBackward;
  if (takes_gradient(arguments.input)) return kExchanges;
  const bool parameters = takes_gradient(arguments.weight) || takes_gradient(arguments.bias);
  return parameters ? kParametersOnly : kNoBackward;
}

}  // namespace

at::Tensor sync_batch_norm(const std::shared_ptr<const SyncLayer>& layer,
                           const BatchNormArguments& arguments) {
  const at::Tensor& input = arguments.input;
  // Of the module, where it has any: what the input says may be wrong on this rank alone.
  const at::Tensor& own = arguments.weight.defined() ? arguments.weight : arguments.running_mean;
  const std::int64_t channels = own.defined() ? own.numel() : input.size(1);
  const Backward backward = backward_of(arguments);
  BatchStatistics statistics;
  {
    const c10::NoGradGuard no_grad;
    statistics = batch_statistics(*layer, input, channels, backward);
  }
  update_running(arguments.running_mean, statistics.mean, arguments.momentum);
  update_running(arguments.running_var, statistics.unbiased_var, arguments.momentum);
  auto call = c10::make_intrusive<Call>();
  call->layer = layer;
  call->count = statistics.count;
  call->eps = arguments.eps;
  call->backward_exchanges = statistics.backward_exchanges;
  return Normalize::apply(input, if_defined(arguments.weight), if_defined(arguments.bias),
                          statistics.mean, statistics.variance, call);
}

}  // namespace lockstep
