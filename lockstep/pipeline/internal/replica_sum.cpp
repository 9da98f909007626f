#include "lockstep/pipeline/internal/replica_sum.h"

#include <cstdint>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/work.h"

namespace lockstep::inline internal {
namespace {

// What is exchanged at a time: large enough that its beginning and end do not matter.
constexpr std::int64_t kMessageBytes = std::int64_t{16} << 20;

struct FlatMessage {
  std::vector<at::Tensor> tensors;
  at::Tensor flat = {};
  Work work = {};
};

// Neighbours of one dtype and device together.
std::vector<FlatMessage> joined(const std::vector<at::Tensor>& tensors) {
  std::vector<FlatMessage> messages;
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    const auto more = static_cast<std::int64_t>(tensor.nbytes());
    const bool fits = !messages.empty() && bytes + more <= kMessageBytes &&
                      messages.back().tensors[0].scalar_type() == tensor.scalar_type() &&
                      messages.back().tensors[0].device() == tensor.device();
    if (!fits) messages.emplace_back();
    bytes = fits ? bytes + more : more;
    messages.back().tensors.push_back(tensor);
  }
  for (FlatMessage& message : messages) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& tensor : message.tensors) flat.push_back(tensor.reshape({-1}));
    message.flat = at::cat(flat);
  }
  return messages;
}

template <class Start>
void exchange_joined(const std::vector<at::Tensor>& tensors, Start&& start) {
  const at::NoGradGuard no_grad;
  std::vector<FlatMessage> messages = joined(tensors);
  for (FlatMessage& message : messages) message.work = start(message.flat);
  for (const FlatMessage& message : messages) {
    message.work.wait();
    std::int64_t offset = 0;
    for (const at::Tensor& tensor : message.tensors) {
      tensor.copy_(message.flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
  }
}

bool is_alone(const ProcessGroup& group) {
  return !group || group.world_size() == 1;
}

}  // namespace

ReplicaSum::ReplicaSum(ProcessGroup group, std::vector<at::Tensor> parameters,
                       const std::vector<at::Tensor>& buffers)
    : group_(std::move(group)), parameters_(std::move(parameters)) {
  if (is_alone(group_)) return;
  std::vector<at::Tensor> state;
  for (const at::Tensor& parameter : parameters_) state.push_back(parameter.detach());
  for (const at::Tensor& buffer : buffers) state.push_back(buffer.detach());
  exchange_joined(
      state, [&](const at::Tensor& flat) { return group_.broadcast(flat, 0, {.async_op = true}); });
}

double ReplicaSum::sum(double value) const {
  if (is_alone(group_)) return value;
  at::Tensor total = at::full({1}, value, at::TensorOptions(at::kDouble).device(group_.device()));
  group_.all_reduce(total);
  return total.item<double>();
}

void ReplicaSum::begin_step() {
  if (is_alone(group_)) return;
  earlier_.clear();
  for (at::Tensor& parameter : parameters_) {
    earlier_.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
  }
}

void ReplicaSum::sum_gradients() {
  if (is_alone(group_)) return;
  std::vector<at::Tensor> gradients;
  std::vector<float> holders;  // one a gradient, and how many ranks have it
  for (at::Tensor& parameter : parameters_) {
    if (!parameter.requires_grad()) continue;
    at::Tensor& gradient = parameter.mutable_grad();
    holders.push_back(gradient.defined() ? 1 : 0);
    if (!gradient.defined()) gradient = at::zeros_like(parameter.detach());
    if (gradient.is_sparse()) {
      throw UsageError("pipeline: a gradient is sparse; replicas sum dense ones only");
    }
    gradients.push_back(gradient);
  }
  const at::Tensor counted = at::tensor(holders, at::kFloat).to(group_.device());
  gradients.push_back(counted);  // With the last of them in one message, where those are float32.
  exchange_joined(gradients, [&](const at::Tensor& flat) {
    return group_.all_reduce(flat, {.async_op = true});
  });
  const at::Tensor counts = counted.cpu();
  const float* count = counts.const_data_ptr<float>();
  for (at::Tensor& parameter : parameters_) {
    if (parameter.requires_grad() && *count++ == 0) parameter.mutable_grad().reset();
  }
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!earlier_[i].defined()) continue;
    at::Tensor& gradient = parameters_[i].mutable_grad();
    if (gradient.defined()) earlier_[i].add_(gradient);
    gradient = earlier_[i];
  }
  earlier_.clear();
}

}  // namespace lockstep::inline internal
