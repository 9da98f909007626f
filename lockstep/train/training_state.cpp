#include "lockstep/train/training_state.h"

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "lockstep/base/error.h"
#include "lockstep/snapshot/optimizer_state.h"
#include "lockstep/snapshot/state_dict.h"
#include "lockstep/snapshot/values.h"
#include "lockstep/snapshot/writable_value.h"

namespace lockstep {
namespace {

// LibTorch does not count that BatchNorm changes its running statistics. Larger tensors, whose copy
// would cost as much as a step may, are looked at by their versions alone.
constexpr std::size_t kAlwaysCopiedBytes = std::size_t{16} << 20U;

bool counts_changes(const at::Tensor& tensor) {
  return tensor.nbytes() > kAlwaysCopiedBytes;
}

constexpr const char* kOtherRank = "the state of another rank";

}  // namespace

TrainingState::TrainingState(TrainingParts parts) : parts_(std::move(parts)) {
  if (!parts_.model)
    throw UsageError("ResilientTraining: there is no model; name one in its parts");
  parameters_ = parts_.model->parameters();
  for (const at::Tensor& buffer : parts_.model->buffers()) copies_.push_back({.tensor = buffer});
  for (const auto& [name, tensor] : parts_.extra) copies_.push_back({.tensor = tensor});
}

std::uint64_t TrainingState::versions() const {
  std::uint64_t sum = 0;
  for (const at::Tensor& parameter : parameters_) sum += parameter._version();
  return sum;
}

void TrainingState::remember() {
  const at::NoGradGuard no_grad;
  for (Copy& copy : copies_) {
    const std::uint32_t version = copy.tensor._version();
    const bool is_same = copy.value.defined() && copy.version == version;
    if (is_same && counts_changes(copy.tensor)) continue;
    copy.version = version;
    if (copy.value.defined()) {
      copy.value.copy_(copy.tensor);
    } else {
      copy.value = copy.tensor.detach().clone();
    }
  }
  versions_ = versions();
}

bool TrainingState::go_back() {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  if (versions() != versions_) return false;
  for (Copy& copy : copies_) {
    if (!copy.value.defined()) continue;
    if (counts_changes(copy.tensor) && copy.version == copy.tensor._version()) continue;
    copy.tensor.copy_(copy.value);
    copy.version = copy.tensor._version();
  }
  return true;
}

c10::IValue TrainingState::value() const {
  c10::impl::GenericDict dict = make_dict();
  dict.insert_or_assign("model", tensor_dict_value(state_dict(*parts_.model)));
  if (parts_.optimizer != nullptr) {
    dict.insert_or_assign("optimizer", optimizer_state_dict(*parts_.optimizer));
  }
  dict.insert_or_assign("extra", tensor_dict_value(parts_.extra));
  return writable_value(dict);
}

void TrainingState::take(const c10::IValue& value, std::int64_t steps) {
  const at::NoGradGuard no_grad;
  load_state_dict(*parts_.model, tensor_dict(entry(value, "model", kOtherRank), kOtherRank),
                  kOtherRank);
  if (parts_.scheduler != nullptr && steps < 0) {
    throw Error("ResilientTraining: the scheduler is ahead of the copy that is to be taken");
  }
  // Its own count of steps is private; the learning rate that it leaves comes with the optimizer.
  for (; parts_.scheduler != nullptr && steps > 0; --steps) parts_.scheduler->step();
  if (parts_.optimizer != nullptr) {
    load_optimizer_state_dict(*parts_.optimizer, entry(value, "optimizer", kOtherRank), kOtherRank);
  }
  const TensorDict extra = tensor_dict(entry(value, "extra", kOtherRank), kOtherRank);
  if (extra.size() != parts_.extra.size()) {
    throw UsageError("ResilientTraining: ranks name different tensors in `extra`");
  }
  for (std::size_t i = 0; i < extra.size(); ++i) {
    parts_.extra[i].second.copy_(extra[i].second);
  }
}

}  // namespace lockstep
