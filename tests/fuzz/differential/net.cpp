#include "tests/fuzz/differential/net.h"

#include <chrono>
#include <thread>

#include <ATen/ATen.h>

#include "lockstep/base/internal/concat.h"

namespace lockstep::differential {
namespace {

const OpPlan* batch_norm_of(const Plan& plan) {
  for (const OpPlan& op : plan.ops) {
    if (op.kind == OpKind::kBatchNorm) return &op;
  }
  return nullptr;
}

}  // namespace

NetImpl::NetImpl(const Plan& plan, int rank)
    : model(make_model(plan, rank)), plan_(plan), rank_(rank) {
  const OpPlan* const normalizes = batch_norm_of(plan);
  if (normalizes != nullptr) {
    norm_ = register_module("norm", torch::nn::BatchNorm1d(kWidth));
    norm_->to(plan.compute);
    const at::NoGradGuard no_grad;
    at::Tensor& weight = model.parameters[normalizes->parameter];
    at::Tensor& bias = model.parameters[normalizes->second];
    norm_->weight.copy_(weight).requires_grad_(weight.requires_grad());
    norm_->bias.copy_(bias).requires_grad_(bias.requires_grad());
    weight = norm_->weight;
    bias = norm_->bias;
    model.running_mean = norm_->running_mean;
    model.running_var = norm_->running_var;
    model.batches_tracked = norm_->num_batches_tracked;
  }
  for (const UnitPlan& unit : plan.units) {
    int around = -1;
    for (int other = 0; other < static_cast<int>(units_.size()); ++other) {
      if (plan.units[other].last >= unit.last) around = other;
    }
    torch::nn::Module& parent = around < 0 ? *this : *units_[around];
    units_.push_back(
        parent.register_module(concat("u", units_.size()), std::make_shared<torch::nn::Module>()));
  }
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    if (!name_of(i).starts_with("norm.")) register_in_units(i);
    const int factor = plan.parameters[i].hook_factor;
    if (factor == 1 || !plan.parameters[i].is_trained) continue;
    model.parameters[i].register_hook(
        [factor](const at::Tensor& gradient) { return gradient * factor; });
  }
  if (plan.has_buffer) register_buffer("buffer", model.buffer);
}

// In the innermost unit of each operator that uses it: one of several names is shared.
void NetImpl::register_in_units(std::size_t parameter) {
  const int index = static_cast<int>(parameter);
  const auto add = [&](torch::nn::Module& unit) {
    if (unit.named_parameters(/*recurse=*/false).contains(name_of(parameter))) return;
    unit.register_parameter(name_of(parameter), model.parameters[parameter],
                            plan_.parameters[parameter].is_trained);
  };
  bool is_used = false;
  for (std::size_t op = 0; op < plan_.ops.size(); ++op) {
    const OpPlan& user = plan_.ops[op];
    if (user.parameter != index && user.second != index && user.third != index) continue;
    const int unit = unit_of_op(plan_, static_cast<int>(op));
    add(unit < 0 ? *this : *units_[unit]);
    is_used = true;
  }
  if (!is_used) add(*this);
}

std::string NetImpl::name_of(std::size_t parameter) const {
  const OpPlan* const normalizes = batch_norm_of(plan_);
  if (normalizes != nullptr && normalizes->parameter == static_cast<int>(parameter))
    return "norm.weight";
  if (normalizes != nullptr && normalizes->second == static_cast<int>(parameter))
    return "norm.bias";
  return concat("p", parameter);
}

at::Tensor NetImpl::use(std::size_t op, const at::Tensor& value, const at::Tensor& first,
                        const at::Tensor& input) {
  const OpPlan& planned = plan_.ops[op];
  if (planned.kind == OpKind::kBatchNorm) return norm_->forward(value);
  if (!planned.is_checkpointed) return apply_op(plan_, planned, model, value, first, input);
  parts_.emplace_back(
      [this, &planned, first = first.detach(), input = input.detach()](const at::Tensor& part) {
        return apply_op(plan_, planned, model, part, first, input);
      });
  return lockstep::testing::Checkpoint::apply(value, parts_.back());
}

std::vector<at::Tensor> NetImpl::forward(const at::Tensor& input, int step) {
  at::Tensor last = input;
  at::Tensor first;
  for (std::size_t i = 0; i < plan_.ops.size(); ++i) {
    const OpPlan& op = plan_.ops[i];
    if (plan_.is_left_out(op, step, rank_)) continue;
    if (op.kind == OpKind::kBuffer && is_training()) change_buffer(plan_, model.buffer, input);
    at::Tensor value = op.is_side ? first : last;
    for (int use = 0; use < plan_.uses(op, step); ++use) {
      value = this->use(i, value, first.defined() ? first : input, input);
    }
    last = combine(plan_, op, last, value);
    if (!first.defined()) first = last;
    if ((op.delays >> rank_ & 1) != 0 && last.requires_grad()) {
      last.register_hook([delay = std::chrono::microseconds(plan_.delay_us)](const at::Tensor&) {
        std::this_thread::sleep_for(delay);  // The interleaving is what is drawn.
      });
    }
  }
  return {last};
}

}  // namespace lockstep::differential
