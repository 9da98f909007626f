#include "tests/fuzz/differential/graph.h"

#include <cmath>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/fuzz/differential/random.h"

namespace lockstep::differential {
namespace {

at::Tensor wrap(const at::Tensor& value) {
  return at::remainder(value.round(), 5) - 2;
}

// Integers from -2 to 2.
at::Tensor integers(Random& random, std::vector<std::int64_t> sizes, at::ScalarType dtype) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  if (count > 4096) {
    const int offset = random.between(0, 1000);
    return (at::remainder(at::arange(count, at::kLong) * 7 + offset, 5) - 2).to(dtype).view(sizes);
  }
  const at::Tensor values = at::empty({count}, at::kDouble);
  auto* const data = values.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < count; ++i) data[i] = random.between(-2, 2);
  return values.to(dtype).view(sizes);
}

Random random_of(const Plan& plan, const Place& place, int what) {
  std::uint64_t state = plan.seed;
  for (const int number : {place.step, place.pass, place.rank, place.forward, what}) {
    state = Random(state * 1'000'003 + static_cast<std::uint64_t>(number)).next();
  }
  return Random(state);
}

at::Tensor lay_out(const at::Tensor& values, Layout layout) {
  switch (layout) {
    case Layout::kTransposed:
      return values.t().contiguous().t();
    case Layout::kChannelsLast:
      return values.contiguous(at::MemoryFormat::ChannelsLast);
    case Layout::kSliced:
      return at::cat({values, values}, 1).narrow(1, 0, values.size(1));
    case Layout::kContiguous:
      break;
  }
  return values;
}

// The parameter as something that can be added to `to`.
at::Tensor view_as(const at::Tensor& parameter, View view, const at::Tensor& to) {
  switch (view) {
    case View::kUnsqueeze:
      return parameter.unsqueeze(0);
    case View::kView:
      return parameter.view({1, -1});
    case View::kReshape:
      return parameter.reshape({1, -1});
    case View::kSqueeze:
      return parameter.squeeze(0);
    case View::kExpand:
      return parameter.expand(to.sizes());
    case View::kPlain:
      break;
  }
  return parameter;
}

// Nonzero in few places, so that sums over many elements stay small.
at::Tensor sparse_mask(std::int64_t elements, at::ScalarType dtype) {
  const at::Tensor mask = at::zeros({elements}, dtype);
  for (std::int64_t i = 0; i < 13; ++i) mask[i * (elements - 1) / 12] = i % 3 - 1;
  return mask;
}

// h = q * s is not needed by what adds to it, but what multiplied reads the gradient that they
// share.
at::Tensor apply_wide(const OpPlan& op, const Model& model, const at::Tensor& value) {
  const at::Tensor scalar = value.select(0, 0).sum();
  at::Tensor wide = (model.parameters[op.parameter] * scalar).reshape({-1});
  const bool is_row =
      op.view == View::kUnsqueeze || op.view == View::kView || op.view == View::kReshape;
  if (is_row) wide = wide.unsqueeze(0);
  for (const int parameter : {op.second, op.third}) {
    if (parameter >= 0) wide = wide + view_as(model.parameters[parameter], op.view, wide);
  }
  return (wide * sparse_mask(wide.numel(), wide.scalar_type())).sum();
}

}  // namespace

std::vector<at::Tensor> Model::buffers() const {
  std::vector<at::Tensor> all;
  for (const at::Tensor& tensor : {buffer, running_mean, running_var, batches_tracked}) {
    if (tensor.defined()) all.push_back(tensor);
  }
  return all;
}

at::Tensor make_parameter(const Plan& plan, int index, int rank) {
  const ParameterPlan& parameter = plan.parameters[index];
  const bool starts_apart = plan.options.init_sync || parameter.is_ignored;
  Random random = random_of(plan, {.rank = starts_apart ? rank : 0}, 100 + index);
  const at::Tensor values = integers(random, parameter.sizes, parameter.dtype);
  return lay_out(values, parameter.layout).detach();
}

Model make_model(const Plan& plan, int rank) {
  Model model;
  for (int i = 0; i < static_cast<int>(plan.parameters.size()); ++i) {
    model.parameters.push_back(
        make_parameter(plan, i, rank).requires_grad_(plan.parameters[i].is_trained));
  }
  if (plan.has_buffer) model.buffer = at::zeros({kWidth}, plan.compute);
  if (plan.has(OpKind::kBatchNorm)) {
    model.running_mean = at::zeros({kWidth}, plan.compute);
    model.running_var = at::ones({kWidth}, plan.compute);
    model.batches_tracked = at::zeros({}, at::kLong);
  }
  return model;
}

at::Tensor make_input(const Plan& plan, const Place& place) {
  Random random = random_of(plan, place, 1);
  const int samples = plan.steps[place.step].passes[place.pass].samples[place.rank];
  return integers(random, {samples, kWidth}, plan.compute);
}

at::Tensor bound(const Plan& plan, const at::Tensor& value) {
  if (plan.has(OpKind::kBatchNorm)) return value.tanh();
  return value + (wrap(value.detach()) - value.detach());
}

at::Tensor apply_op(const Plan& plan, const OpPlan& op, const Model& model, const at::Tensor& value,
                    const at::Tensor& first, const at::Tensor& input) {
  const auto parameter = [&](int index) {
    return index < 0 ? at::Tensor() : model.parameters[index].to(plan.compute);
  };
  switch (op.kind) {
    case OpKind::kLinear:
      return bound(plan, at::linear(value, parameter(op.parameter), parameter(op.second)));
    case OpKind::kMatmul:
      return bound(plan, value.matmul(parameter(op.parameter)));
    case OpKind::kBias:
      return bound(plan, value + view_as(parameter(op.parameter), op.view, value));
    case OpKind::kMultiply:
    case OpKind::kScalar:
      return bound(plan, value * parameter(op.parameter));
    case OpKind::kSum:
      return bound(plan, value + parameter(op.parameter).sum());
    case OpKind::kConvolution:
      return bound(plan, at::conv2d(value.view({value.size(0), 1, 2, 2}), parameter(op.parameter))
                             .view({value.size(0), kWidth}));
    case OpKind::kEmbedding: {
      const at::Tensor words =
          at::remainder(input.select(1, 0) * 5 + input.select(1, 1), kWords).to(at::kLong);
      return bound(plan,
                   value + at::embedding(parameter(op.parameter), words, -1, false, op.sparse));
    }
    case OpKind::kComplex: {
      const at::Tensor pairs = at::view_as_real(model.parameters[op.parameter]);
      return bound(plan, value * pairs.select(1, 0) + pairs.select(1, 1));
    }
    case OpKind::kWide:
      if (value.size(0) == 0) return value;
      return bound(plan, value + apply_wide(op, model, value));
    case OpKind::kBuffer:
      return bound(plan, value + model.buffer);
    case OpKind::kSquare:
      return bound(plan, value * value);
    case OpKind::kProduct:
      return bound(plan, value * first);
    case OpKind::kBatchNorm:
      break;
  }
  return value;
}

at::Tensor combine(const Plan& plan, const OpPlan& op, const at::Tensor& last,
                   const at::Tensor& result) {
  return op.adds_input || op.is_side ? bound(plan, last + result) : result;
}

void change_buffer(const Plan& plan, const at::Tensor& buffer, const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  at::Tensor target = buffer;
  target.copy_(plan.has(OpKind::kBatchNorm) ? (target + input.sum(0)).tanh()
                                            : wrap(target + input.sum(0)));
}

at::Tensor dense(const at::Tensor& tensor) {
  at::Tensor values = tensor.detach();
  if (values.is_sparse()) values = values.to_dense();
  return values.is_complex() ? at::view_as_real(values.resolve_conj()) : values;
}

bool is_whole(const at::Tensor& tensor) {
  const at::Tensor values = dense(tensor);
  return at::equal(values.round(), values);
}

at::Tensor make_loss(const Plan& plan, const Place& place, const Model& model,
                     const at::Tensor& input, const at::Tensor& output) {
  Random random = random_of(plan, place, 2);
  at::Tensor loss = (output * integers(random, output.sizes().vec(), plan.compute)).sum();
  if (plan.double_backward) loss = loss + (output * output).sum();
  if (plan.penalizes_gradients) {
    const at::Tensor gradient =
        torch::autograd::grad({(output * output).sum()}, {input}, {}, true, true)[0];
    loss = loss + (gradient * gradient).sum();
  }
  if (plan.penalizes_parameters) {
    const at::Tensor& parameter = model.parameters[1];
    loss = loss + (parameter * parameter).sum();
  }
  const PassPlan& pass = plan.steps[place.step].passes[place.pass];
  // The mean over no samples.
  if (!pass.has_data[place.rank] && !plan.has(OpKind::kBatchNorm)) loss = loss / 0.0;
  return loss * multiplier(plan, place.step, place.pass);
}

at::Tensor make_loss_that_reaches_nothing(const at::Tensor& input) {
  return input.sum();
}

std::vector<at::Tensor> trained(const Plan& plan, const Model& model) {
  std::vector<at::Tensor> parameters;
  for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
    if (plan.parameters[i].is_trained) parameters.push_back(model.parameters[i]);
  }
  return parameters;
}

void round_parameters(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor target = parameter.is_complex() ? at::view_as_real(parameter) : parameter;
    target.copy_(wrap(at::nan_to_num(target, 0, 0, 0)));
  }
}

}  // namespace lockstep::differential
