#include "lockstep/ddp/internal/replica_state.h"

#include <algorithm>
#include <unordered_set>

#include <torch/nn/module.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

template <class Dictionary, class IsIgnored>
std::vector<NamedTensor> each_once(const Dictionary& named, IsIgnored&& is_ignored) {
  std::vector<NamedTensor> tensors;
  std::unordered_set<const void*> seen;
  for (const auto& item : named) {
    if (is_ignored(item.key())) continue;
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      tensors.push_back({item.key(), item.value()});
    }
  }
  return tensors;
}

}  // namespace

ReplicaState::ReplicaState(const torch::nn::Module& module, std::vector<std::string> ignored)
    : module_(module), ignored_(std::move(ignored)) {
  const auto parameters = module_.named_parameters();
  const auto buffers = module_.named_buffers();
  for (const std::string& name : ignored_) {
    if (parameters.contains(name) || buffers.contains(name)) continue;
    throw UsageError(concat("DistributedDataParallel: parameters_and_buffers_to_ignore names '",
                            name,
                            "', which is no parameter or buffer of the module; names are "
                            "those of named_parameters() and named_buffers()"));
  }
  for (NamedTensor& buffer : this->buffers()) {
    buffer_tensors_.push_back(std::move(buffer.tensor));
  }
}

bool ReplicaState::is_ignored(const std::string& name) const {
  return std::find(ignored_.begin(), ignored_.end(), name) != ignored_.end();
}

std::vector<NamedTensor> ReplicaState::parameters() const {
  return each_once(module_.named_parameters(),
                   [this](const std::string& name) { return is_ignored(name); });
}

void ReplicaState::set_buffers(const std::vector<NamedTensor>& buffers) {
  buffers_.emplace();
  buffer_tensors_.clear();
  for (const NamedTensor& buffer : buffers) {
    if (is_ignored(buffer.name)) continue;
    buffers_->push_back(buffer);
    buffer_tensors_.push_back(buffer.tensor);
  }
}

std::vector<NamedTensor> ReplicaState::buffers() const {
  if (buffers_) return *buffers_;
  return each_once(module_.named_buffers(),
                   [this](const std::string& name) { return is_ignored(name); });
}

}  // namespace lockstep::inline internal
