#include "lockstep/optim/exponential_moving_average.h"

#include <map>

#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/internal/tensor_difference.h"

namespace lockstep {
namespace {

constexpr const char* kCount = "n_averaged";
constexpr const char* kPrefix = "module.";

bool is_averaged_by_lerp(const at::Tensor& tensor) {
  return tensor.is_floating_point() || tensor.is_complex();
}

}  // namespace

ExponentialMovingAverage::ExponentialMovingAverage(const torch::nn::Module& module,
                                                   const ExponentialMovingAverageOptions& options)
    : decay_(options.decay), use_buffers_(options.use_buffers) {
  if (!(decay_ >= 0 && decay_ <= 1)) {
    throw UsageError(concat("ExponentialMovingAverage: decay=", decay_,
                            " is outside of 0 to 1; 0.999 is usual"));
  }
  const c10::NoGradGuard no_grad;
  std::map<const void*, std::size_t> known;
  const auto add = [&](const std::string& name, const at::Tensor& weight, bool is_buffer) {
    const auto [place, is_new] = known.emplace(weight.unsafeGetTensorImpl(), entries_.size());
    if (is_new) entries_.push_back({weight, weight.detach().clone(), is_buffer});
    names_.emplace_back(kPrefix + name, place->second);
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value(), false);
  for (const auto& item : module.named_buffers()) add(item.key(), item.value(), true);
}

void ExponentialMovingAverage::update() {
  if (applied_) {
    throw UsageError(
        "ExponentialMovingAverage: update() while the module holds the averages; destroy the guard "
        "of apply() first");
  }
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> averages;
  std::vector<at::Tensor> weights;
  for (Entry& entry : entries_) {
    const at::Tensor weight = entry.weight.detach().to(entry.average.device());
    if (n_averaged_ == 0 || (entry.is_buffer && !use_buffers_)) {
      entry.average.copy_(weight);
    } else if (is_averaged_by_lerp(weight)) {
      averages.push_back(entry.average);
      weights.push_back(weight);
    } else {
      entry.average.copy_(entry.average * decay_ + weight * (1 - decay_));
    }
  }
  if (!averages.empty()) at::_foreach_lerp_(averages, weights, 1 - decay_);
  ++n_averaged_;
}

AveragedWeights ExponentialMovingAverage::apply() {
  return AveragedWeights(*this);
}

TensorDict ExponentialMovingAverage::state_dict() const {
  TensorDict state{{kCount, at::scalar_tensor(n_averaged_, at::kLong)}};
  for (const auto& [name, place] : names_) state.emplace_back(name, entries_[place].average);
  return state;
}

void ExponentialMovingAverage::load_state_dict(const TensorDict& values) {
  if (applied_) {
    throw UsageError(
        "ExponentialMovingAverage: load_state_dict() while the module holds the averages; destroy "
        "the guard of apply() first");
  }
  const auto differences = tensor_differences(state_dict(), values);
  if (!differences.empty()) {
    throw UsageError(concat("load the state of an ExponentialMovingAverage: ", differences[0].text,
                            "; load it for the model that it was saved from"));
  }
  const std::map<std::string, at::Tensor> given(values.begin(), values.end());
  const c10::NoGradGuard no_grad;
  n_averaged_ = given.at(kCount).item().toLong();
  for (const auto& [name, place] : names_) entries_[place].average.copy_(given.at(name));
}

AveragedWeights::AveragedWeights(ExponentialMovingAverage& average) : average_(average) {
  if (average_.applied_) {
    throw UsageError(
        "ExponentialMovingAverage: apply() while the module holds the averages; destroy the "
        "earlier guard first");
  }
  const c10::NoGradGuard no_grad;
  for (const auto& entry : average_.entries_) own_.push_back(entry.weight.detach().clone());
  for (const auto& entry : average_.entries_) entry.weight.detach().copy_(entry.average);
  average_.applied_ = true;
}

AveragedWeights::~AveragedWeights() {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < own_.size(); ++i) {
    average_.entries_[i].weight.detach().copy_(own_[i]);
  }
  average_.applied_ = false;
}

}  // namespace lockstep
