#include "lockstep/ddp/exchange/one_copy_gradients.h"

#include <utility>

#include <ATen/ScalarOps.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/ddp/exchange/gradient_view.h"
#include "lockstep/ddp/exchange/large_gradient.h"

namespace lockstep::inline internal {
namespace {

constexpr std::int64_t kLineBytes = 64;

class BeforeAccumulate final : public torch::autograd::FunctionPreHook {
 public:
  BeforeAccumulate(ModelCopy& copy, std::size_t index) : copy_(copy), index_(index) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    copy_.before_gradient(index_);
    return gradients;
  }
  bool is_of(const ModelCopy& copy) const { return &copy_ == &copy; }

 private:
  ModelCopy& copy_;
  const std::size_t index_;
};

bool is_small(const at::Tensor& parameter) {
  return static_cast<std::int64_t>(parameter.nbytes()) < LargeGradient::kLeastBytes;
}

std::int64_t bytes_of(const at::Tensor& parameter) {
  const auto bytes = static_cast<std::int64_t>(parameter.nbytes());
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

}  // namespace

OneCopyGradients::OneCopyGradients(const ProcessGroup& group, std::shared_ptr<ModelCopy> copy)
    : group_(group), copy_(std::move(copy)), small_(copy_->parameters().size()) {
  const std::vector<at::Tensor>& parameters = copy_->parameters();
  std::int64_t total = 0;
  for (const at::Tensor& parameter : parameters) {
    if (is_small(parameter)) total += bytes_of(parameter);
  }
  const at::Tensor flat = copy_->allocate_gradient(total, at::kByte);
  std::int64_t offset = 0;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const at::Tensor& parameter = parameters[index];
    accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameter));
    accumulators_.back()->add_pre_hook(std::make_unique<BeforeAccumulate>(*copy_, index));
    if (!is_small(parameter)) continue;
    const auto bytes = static_cast<std::int64_t>(parameter.nbytes());
    const at::Tensor part = flat.narrow(0, offset, bytes).view(parameter.scalar_type());
    small_[index] = gradient_view(part, 0, parameter.detach());
    offset += bytes_of(parameter);
  }
}

OneCopyGradients::~OneCopyGradients() {
  for (const Accumulator& accumulator : accumulators_) {
    std::erase_if(accumulator->pre_hooks(), [&](const auto& hook) {
      const auto* const own = dynamic_cast<const BeforeAccumulate*>(hook.get());
      return own != nullptr && own->is_of(*copy_);
    });
  }
}

void OneCopyGradients::hold_all(GradientScale& scale) {
  const c10::NoGradGuard no_grad;
  // Over several machines replicas divide before they sum.
  const bool averages = copy_->is_on_one_machine();
  const double factor = averages ? scale.of_own() : scale.get() / group_.world_size();
  const double weight = averages ? scale.of_average() : 1;
  const std::vector<at::Tensor>& parameters = copy_->parameters();
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    // Of an earlier pass; this one did not reach it.
    if (copy_->holds_gradient(index)) continue;
    at::Tensor& gradient = parameters[index].mutable_grad();
    const bool has_none = !gradient.defined() || gradient.is_meta();
    copy_->hold_gradient(index, has_none ? at::Tensor() : take(index, gradient, factor), weight);
  }
}

at::Tensor OneCopyGradients::take(std::size_t index, at::Tensor& gradient, double factor) const {
  // The program may have changed the strides (set_data); a step goes by the copy's.
  const at::Tensor& parameter = copy_->view(index);
  if (gradient.layout() != at::kStrided) {
    throw UsageError(concat("DistributedDataParallel on rank ", group_.rank(), ": parameter '",
                            copy_->name_of(index),
                            "' has a sparse gradient, which one_copy_per_machine does not support; "
                            "make it dense or leave the option out"));
  }
  const bool may_stay = factor == 1 && !gradient.requires_grad() && copy_->can_hold(gradient) &&
                        lies_as_gradient_view(gradient, parameter) && has_one_owner(gradient, {});
  if (may_stay) return std::exchange(gradient, at::Tensor());
  at::Tensor copied = small_[index];
  if (!copied.defined()) {
    copied = gradient_view(copy_->allocate_gradient(parameter.numel(), parameter.scalar_type()), 0,
                           parameter);
  }
  if (factor == 1) {
    copied.copy_(gradient);
  } else {
    at::mul_out(copied, gradient, at::native::wrapped_scalar_tensor(factor));
  }
  return copied;
}

}  // namespace lockstep::inline internal
