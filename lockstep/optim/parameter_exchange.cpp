#include "lockstep/optim/parameter_exchange.h"

#include <map>
#include <string>
#include <tuple>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// From here on a message of its own costs less than the copies into and out of a shared one.
constexpr std::int64_t kAloneBytes = std::int64_t{1} << 20;
// Bounds the memory that copies of small parameters take at a time; PyTorch's bucket size.
constexpr std::int64_t kSmallParametersBytes = std::int64_t{25} << 20;

std::int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.nbytes());
}

// All bytes of a tensor without gaps, in the order of memory.
at::Tensor memory_of(const at::Tensor& tensor) {
  return tensor.detach().as_strided({tensor.numel()}, {1}).view(at::kByte);
}

// The part of a flat memory that takes a tensor, in its shape.
at::Tensor place_in(const at::Tensor& memory, std::int64_t offset, const at::Tensor& tensor) {
  const at::Tensor part = memory.narrow(0, offset, tensor.numel());
  if (!tensor.is_non_overlapping_and_dense()) return part.view(tensor.sizes());
  return part.as_strided(tensor.sizes(), tensor.strides(), part.storage_offset());
}

}  // namespace

ParameterExchange::ParameterExchange(ProcessGroup group,
                                     const std::vector<OwnedParameter>& parameters,
                                     const Options& options)
    : group_(std::move(group)), as_bucket_view_(options.as_bucket_view) {
  if (group_.world_size() == 1) return;
  const c10::NoGradGuard no_grad;
  // One open message for each owner, dtype and device, closed in the order of the parameters.
  using Kind = std::tuple<int, at::ScalarType, std::string>;
  std::map<Kind, std::pair<Message, std::int64_t>> open;
  std::vector<Kind> order;
  for (const auto& [tensor, owner] : parameters) {
    if (tensor.numel() == 0) continue;
    const bool goes_alone = !as_bucket_view_ && bytes_of(tensor) >= kAloneBytes &&
                            tensor.is_non_overlapping_and_dense() &&
                            tensor.device() == group_.device();
    if (goes_alone) {
      messages_.push_back({.owner = owner, .parameters = {tensor}});
      continue;
    }
    const Kind kind{owner, tensor.scalar_type(), tensor.device().str()};
    const auto [place, is_new] = open.try_emplace(kind, Message{.owner = owner}, 0);
    if (is_new) order.push_back(kind);
    auto& [message, bytes] = place->second;
    message.parameters.push_back(tensor);
    bytes += bytes_of(tensor);
    if (!as_bucket_view_ && bytes >= kSmallParametersBytes) {
      messages_.push_back(std::move(message));
      message = {.owner = owner};
      bytes = 0;
    }
  }
  for (const Kind& kind : order) {
    Message& message = open.at(kind).first;
    if (!message.parameters.empty()) messages_.push_back(std::move(message));
  }
  for (Message& message : messages_) {
    const at::Tensor& first = message.parameters[0];
    const bool goes_alone = !as_bucket_view_ && message.parameters.size() == 1 &&
                            first.is_non_overlapping_and_dense() &&
                            first.device() == group_.device();
    if (!goes_alone) allocate(message);
  }
}

void ParameterExchange::allocate(Message& message) const {
  std::int64_t numel = 0;
  for (const at::Tensor& parameter : message.parameters) numel += parameter.numel();
  message.memory = group_.allocate_tensor(numel, message.parameters[0].scalar_type());
  std::int64_t offset = 0;
  for (at::Tensor& parameter : message.parameters) {
    const at::Tensor place = place_in(message.memory, offset, parameter);
    offset += parameter.numel();
    if (as_bucket_view_ && parameter.device() == message.memory.device()) {
      place.copy_(parameter);
      parameter.set_data(place);
    } else {
      message.places.push_back(place);
    }
  }
}

void ParameterExchange::check_views(const Message& message) const {
  if (!message.memory.defined() || !message.places.empty()) return;
  for (const at::Tensor& parameter : message.parameters) {
    if (parameter.is_alias_of(message.memory)) continue;
    throw UsageError(concat("exchange parameters on rank ", group_.rank(), ": one of shape ",
                            parameter.sizes(),
                            " has left the memory that is exchanged; with "
                            "parameters_as_bucket_view, change dtype and device before the "
                            "optimizer is made"));
  }
}

void ParameterExchange::run() {
  const c10::NoGradGuard no_grad;
  for (const Message& message : messages_) check_views(message);
  std::vector<Work> works;
  for (const Message& message : messages_) {
    const bool is_owner = message.owner == group_.rank();
    if (is_owner) {
      for (std::size_t i = 0; i < message.places.size(); ++i) {
        message.places[i].copy_(message.parameters[i]);
      }
    }
    const at::Tensor& memory = message.memory.defined() ? message.memory : message.parameters[0];
    works.push_back(group_.broadcast(memory_of(memory), message.owner, {.async_op = true}));
  }
  for (std::size_t m = 0; m < messages_.size(); ++m) {
    works[m].wait();
    const Message& message = messages_[m];
    if (message.owner == group_.rank()) continue;
    for (std::size_t i = 0; i < message.places.size(); ++i) {
      message.parameters[i].copy_(message.places[i]);
    }
  }
}

}  // namespace lockstep
