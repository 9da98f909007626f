#include "lockstep/recovery/internal/training_state.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/recovery/internal/update_mark.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/internal/tensor_difference.h"
#include "lockstep/snapshot/pickle/pickled.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/state_dict.h"

namespace lockstep::inline internal {
namespace {

// LibTorch gives a scheduler's count of steps to those derived from it only.
struct SchedulerSteps : torch::optim::LRScheduler {
  static void take_back(LRScheduler& scheduler, std::int64_t steps) {
    scheduler.*(&SchedulerSteps::step_count_) -= static_cast<unsigned>(steps);
  }
};

constexpr const char* kGradients = "gradients";

}  // namespace

void take_back_steps(torch::optim::LRScheduler& scheduler, std::int64_t steps) {
  SchedulerSteps::take_back(scheduler, steps);
}

TrainingState::TrainingState(TrainingParts parts) : parts_(std::move(parts)) {
  if (!parts_.model)
    throw UsageError("ResilientTraining: no model given; set TrainingParts::model");
  if (const auto repeated = repeated_name(parts_.extra)) {
    throw UsageError(concat("ResilientTraining: `extra` has two tensors named '", *repeated,
                            "'; give each its own name"));
  }
  for (const at::Tensor& parameter : parts_.model->parameters()) {
    parameters_.push_back({.parameter = parameter, .group = group_of(parts_.optimizer, parameter)});
  }
  for (const at::Tensor& buffer : parts_.model->buffers()) copies_.add(buffer);
  for (const auto& [name, tensor] : parts_.extra) copies_.add(tensor);
}

std::uint64_t TrainingState::mark_of(const Watched& watched) const {
  return update_mark(parts_.optimizer, watched.group, watched.parameter);
}

void TrainingState::remember() {
  const at::NoGradGuard no_grad;
  is_torn_ = false;  // A copy that is left again while ranks meet is one whose state was replaced.
  copies_.remember();
  for (Watched& watched : parameters_) {
    watched.mark = mark_of(watched);
    watched.gradient = gradient_kind(watched.parameter);
  }
}

bool TrainingState::roll_back() {
  const at::NoGradGuard no_grad;
  for (Watched& watched : parameters_) watched.parameter.mutable_grad().reset();
  const auto has_changed = [&](const Watched& watched) { return mark_of(watched) != watched.mark; };
  if (std::exchange(is_torn_, false) || std::ranges::any_of(parameters_, has_changed)) return false;
  for (const Watched& watched : parameters_) reset_gradient(watched.parameter, watched.gradient);
  copies_.roll_back();
  return true;
}

void TrainingState::leave_copies() {
  const CopyPlaces places(parameters());
  is_torn_ = is_torn_ || places.are_torn();
  places.leave();
}

std::vector<at::Tensor> TrainingState::parameters() const {
  std::vector<at::Tensor> parameters;
  for (const Watched& watched : parameters_) parameters.push_back(watched.parameter);
  return parameters;
}

std::uint64_t TrainingState::parameters_hash() const {
  return hash_of_all(parameters());
}

c10::IValue TrainingState::value() const {
  c10::impl::GenericDict dict = make_dict();
  dict.insert_or_assign("model", tensor_dict_value(state_dict(*parts_.model)));
  if (parts_.optimizer != nullptr) {
    dict.insert_or_assign("optimizer", optimizer_state_dict(*parts_.optimizer));
  }
  dict.insert_or_assign("extra", tensor_dict_value(parts_.extra));
  std::vector<std::int64_t> gradients;
  for (const Watched& watched : parameters_) gradients.push_back(gradient_kind(watched.parameter));
  dict.insert_or_assign(kGradients, at::tensor(gradients));
  return writable_value(dict);
}

void TrainingState::take(const c10::IValue& value, std::int64_t steps) {
  const at::NoGradGuard no_grad;
  const TensorDict extra = tensor_dict(entry(value, "extra", kOtherRank), kOtherRank);
  check_extra(extra);
  load_state_dict(*parts_.model, tensor_dict(entry(value, "model", kOtherRank), kOtherRank),
                  kOtherRank);
  // The learning rate that it leaves comes with the optimizer.
  if (parts_.scheduler != nullptr && steps < 0) take_back_steps(*parts_.scheduler, -steps);
  for (; parts_.scheduler != nullptr && steps > 0; --steps) parts_.scheduler->step();
  if (parts_.optimizer != nullptr) {
    adopt_optimizer_state_dict(*parts_.optimizer, entry(value, "optimizer", kOtherRank),
                               kOtherRank);
  }
  for (auto& [name, tensor] : parts_.extra) {
    tensor.copy_(std::ranges::find(extra, name, &TensorDict::value_type::first)->second);
  }
  const c10::IValue gradients = find_value(value, kGradients);
  const bool is_known =
      gradients.isTensor() && gradients.toTensor().numel() == std::ssize(parameters_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    reset_gradient(parameters_[i].parameter,
                   is_known ? gradients.toTensor().const_data_ptr<std::int64_t>()[i] : kNoGradient);
  }
}

void TrainingState::check_extra(const TensorDict& saved) const {
  const auto differences = tensor_differences(parts_.extra, saved);
  if (differences.empty()) return;
  throw UsageError(concat("ResilientTraining: `extra` does not match the saved state: ",
                          differences[0].text, "; give the same tensors"));
}

}  // namespace lockstep::inline internal
