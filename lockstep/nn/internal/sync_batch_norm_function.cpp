#include "lockstep/nn/internal/sync_batch_norm_function.h"

#include <optional>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/comm/internal/collective_backward.h"

namespace lockstep::inline internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

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

void update_running(const at::Tensor& running, const at::Tensor& batch, double momentum) {
  if (!running.defined()) return;
  const c10::NoGradGuard no_grad;
  running.copy_(running.to(at::kDouble).mul(1 - momentum).add_(batch, momentum));
}

struct Call : torch::CustomClassHolder {
  std::shared_ptr<const SyncLayer> layer;
  double count = 0;  // values per channel on all ranks
  double eps = 0;
  bool backward_exchanges = false;
};

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

BatchNormBackward backward_of(const BatchNormArguments& arguments) {
  const auto takes_gradient = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  };
  if (!c10::GradMode::is_enabled()) return BatchNormBackward::kNone;
  if (takes_gradient(arguments.input)) return BatchNormBackward::kExchanges;
  const bool parameters = takes_gradient(arguments.weight) || takes_gradient(arguments.bias);
  return parameters ? BatchNormBackward::kParametersOnly : BatchNormBackward::kNone;
}

}  // namespace

at::Tensor sync_batch_norm(const std::shared_ptr<const SyncLayer>& layer,
                           const BatchNormArguments& arguments) {
  const at::Tensor& input = arguments.input;
  // Of the module, where it has any: what the input says may be wrong on this rank alone.
  const at::Tensor& own = arguments.weight.defined() ? arguments.weight : arguments.running_mean;
  const std::int64_t channels = own.defined() ? own.numel() : input.size(1);
  const BatchNormBackward backward = backward_of(arguments);
  BatchStatistics statistics;
  {
    const c10::NoGradGuard no_grad;
    statistics = gather_batch_statistics(*layer, input, channels, backward);
  }
  update_running(arguments.running_mean, statistics.mean, arguments.momentum);
  update_running(arguments.running_var, statistics.unbiased_variance, arguments.momentum);
  auto call = c10::make_intrusive<Call>();
  call->layer = layer;
  call->count = statistics.count;
  call->eps = arguments.eps;
  call->backward_exchanges = statistics.backward_exchanges;
  at::Tensor output =
      Normalize::apply(input, if_defined(arguments.weight), if_defined(arguments.bias),
                       statistics.mean, statistics.variance, call);
  if (statistics.backward_exchanges) mark_collective_backward(output);
  return output;
}

}  // namespace lockstep::inline internal
