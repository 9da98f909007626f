#include "lockstep/optim/internal/parameter_exchange.h"

#include <map>
#include <string>
#include <tuple>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

// From here on a message of its own costs less than the copies into and out of a shared one.
constexpr std::int64_t kAloneBytes = std::int64_t{1} << 20;
// Bounds the memory that copies of small parameters take at a time; PyTorch's bucket size.
constexpr std::int64_t kSmallParametersBytes = std::int64_t{25} << 20;

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
    : group_(std::move(group)),
      as_bucket_view_(options.as_bucket_view),
      messages_(static_cast<std::size_t>(group_.world_size())) {
  if (group_.world_size() == 1) return;
  const c10::NoGradGuard no_grad;
  add_messages(parameters);
  std::vector<std::vector<std::int64_t>> bytes;
  for (std::vector<Message>& of_owner : messages_) {
    std::vector<std::int64_t>& of_owner_bytes = bytes.emplace_back();
    for (Message& message : of_owner) {
      if (!travels_as_it_lies(message)) allocate(message);
      of_owner_bytes.push_back(message.bytes);
    }
  }
  rounds_ = plan_exchange_rounds(bytes);
}

void ParameterExchange::add_messages(const std::vector<OwnedParameter>& parameters) {
  // One open message for each owner, dtype and device, closed in the order of the parameters.
  using Kind = std::tuple<int, at::ScalarType, std::string>;
  std::map<Kind, Message> open;
  std::vector<Kind> order;
  const auto close = [&](int owner, Message& message) {
    if (message.bytes > 0) messages_[static_cast<std::size_t>(owner)].push_back(message);
    message = {};
  };
  for (const auto& [tensor, owner] : parameters) {
    if (tensor.numel() == 0) continue;
    Message alone{.parameters = {tensor}, .bytes = static_cast<std::int64_t>(tensor.nbytes())};
    if (alone.bytes >= kAloneBytes && travels_as_it_lies(alone)) {
      close(owner, alone);
      continue;
    }
    const Kind kind{owner, tensor.scalar_type(), tensor.device().str()};
    const auto [place, is_new] = open.try_emplace(kind);
    if (is_new) order.push_back(kind);
    Message& message = place->second;
    message.parameters.push_back(tensor);
    message.bytes += alone.bytes;
    if (!as_bucket_view_ && message.bytes >= kSmallParametersBytes) close(owner, message);
  }
  for (const Kind& kind : order) close(std::get<0>(kind), open.at(kind));
}

bool ParameterExchange::travels_as_it_lies(const Message& message) const {
  const at::Tensor& first = message.parameters[0];
  return !as_bucket_view_ && message.parameters.size() == 1 &&
         first.is_non_overlapping_and_dense() && first.device() == group_.device();
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

at::Tensor ParameterExchange::part_of(int owner, const MessagePart& part,
                                      std::int64_t bytes) const {
  const Message& message = messages_[static_cast<std::size_t>(owner)][part.message];
  const at::Tensor& memory = message.memory.defined() ? message.memory : message.parameters[0];
  return memory_of(memory).narrow(0, part.offset, bytes);
}

void ParameterExchange::run() {
  const c10::NoGradGuard no_grad;
  const auto own_rank = static_cast<std::size_t>(group_.rank());
  for (const std::vector<Message>& of_owner : messages_) {
    for (const Message& message : of_owner) check_views(message);
  }
  for (const Message& message : messages_[own_rank]) {
    for (std::size_t i = 0; i < message.places.size(); ++i) {
      message.places[i].copy_(message.parameters[i]);
    }
  }
  std::vector<Work> works;
  for (const ExchangeRound& round : rounds_) {
    if (round.parts.size() == 1) {
      works.push_back(group_.broadcast(part_of(round.source, round.parts[0], round.bytes),
                                       round.source, {.async_op = true}));
      continue;
    }
    std::vector<at::Tensor> parts;
    for (int owner = 0; owner < group_.world_size(); ++owner) {
      parts.push_back(part_of(owner, round.parts[static_cast<std::size_t>(owner)], round.bytes));
    }
    works.push_back(group_.all_gather(parts, parts[own_rank], {.async_op = true}));
  }
  for (const Work& work : works) work.wait();
  for (std::size_t owner = 0; owner < messages_.size(); ++owner) {
    if (owner == own_rank) continue;
    for (const Message& message : messages_[owner]) {
      for (std::size_t i = 0; i < message.places.size(); ++i) {
        message.parameters[i].copy_(message.places[i]);
      }
    }
  }
}

}  // namespace lockstep::inline internal
