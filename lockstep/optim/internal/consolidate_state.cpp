#include "lockstep/optim/internal/consolidate_state.h"

#include <bit>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/internal/optimizer_kinds.h"
#include "lockstep/snapshot/internal/optimizer_state.h"

namespace lockstep::inline internal {
namespace {

// Bounds the memory that copies take at a time; PyTorch's figure for broadcasts.
constexpr std::int64_t kStateMessageBytes = std::int64_t{250} << 20;

at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

/// Counts the entries of a state, its number of steps and its tensors alike.
struct CountFields {
  std::int64_t& count;
  template <class Value>
  void operator()(const char*, const Value&) const {
    ++count;
  }
};

/// A state as a row of numbers: of a count itself, of a number its bits, of a tensor its dtype.
struct WriteFields {
  at::Tensor row;
  std::vector<at::Tensor>& tensors;
  mutable std::int64_t field = 0;
  void operator()(const char*, std::int64_t count) const { row[field++].fill_(count); }
  void operator()(const char*, double number) const {
    row[field++].fill_(std::bit_cast<std::int64_t>(number));
  }
  /// Its dtype, which differs from the parameter's where the optimizer keeps it in float32.
  void operator()(const char*, const at::Tensor& tensor) const {
    row[field++].fill_(tensor.defined() ? 1 + static_cast<std::int64_t>(tensor.scalar_type()) : 0);
    if (tensor.defined()) tensors.push_back(tensor.detach().contiguous());
  }
};

/// A state made of such a row, its tensors still to be filled.
struct ReadFields {
  at::Tensor row;
  const at::Tensor& parameter;
  std::vector<at::Tensor>& tensors;
  mutable std::int64_t field = 0;
  void operator()(const char*, std::int64_t& count) const { count = row[field++].item().toLong(); }
  void operator()(const char*, double& number) const {
    number = std::bit_cast<double>(row[field++].item().toLong());
  }
  void operator()(const char*, at::Tensor& tensor) const {
    const std::int64_t dtype = row[field++].item().toLong();
    if (dtype == 0) return;
    tensor = at::empty(parameter.sizes(), static_cast<at::ScalarType>(dtype - 1));
    tensors.push_back(tensor);
  }
};

/// Tensors from rank `source` to `target`, or to all, where their sizes are known.
class TensorTransfer {
 public:
  TensorTransfer(const ProcessGroup& group, int source, std::optional<int> target)
      : group_(group), source_(source), target_(target) {}

  /// `tensors`: what is sent, or where it is received.
  void run(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.numel() == 0) continue;
      message_.push_back(as_bytes(tensor));
      bytes_ += message_.back().numel();
      if (bytes_ >= kStateMessageBytes) transfer();
    }
    if (bytes_ > 0) transfer();
  }

 private:
  void transfer() {
    const bool is_source = group_.rank() == source_;
    at::Tensor memory =
        is_source ? at::cat(message_).to(group_.device())
                  : at::empty({bytes_}, at::TensorOptions(at::kByte).device(group_.device()));
    if (!target_) {
      group_.broadcast(memory, source_);
    } else if (is_source) {
      group_.send(memory, *target_);
    } else {
      group_.recv(memory, source_);
    }
    std::int64_t offset = 0;
    for (at::Tensor& part : message_) {
      if (!is_source) part.copy_(memory.narrow(0, offset, part.numel()));
      offset += part.numel();
    }
    message_.clear();
    bytes_ = 0;
  }

  const ProcessGroup& group_;
  int source_;
  std::optional<int> target_;
  std::vector<at::Tensor> message_;
  std::int64_t bytes_ = 0;
};

template <class Kind>
c10::IValue consolidate(const Kind& kind, const torch::optim::Optimizer& optimizer,
                        const std::vector<OwnedParameter>& parameters, const ProcessGroup& group,
                        std::optional<int> target) {
  using State = typename Kind::State;
  const int rank = group.rank();
  std::int64_t fields = 0;
  Kind::visit_state(*make_state(kind), CountFields{fields});

  // A row a parameter: whether it has a state, then what there is of it.
  at::Tensor table =
      at::zeros({static_cast<std::int64_t>(parameters.size()), 1 + fields}, at::kLong);
  const auto row_of = [&](std::size_t i) { return table[static_cast<std::int64_t>(i)]; };
  std::vector<at::Tensor> own;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].owner != rank) continue;
    const auto found = optimizer.state().find(parameters[i].tensor.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    row_of(i)[0].fill_(1);
    Kind::visit_state(static_cast<const State&>(*found->second),
                      WriteFields{row_of(i).narrow(0, 1, fields), own});
  }
  table = table.to(group.device());
  group.all_reduce(table);  // a row is zero on all ranks but the owner
  table = table.cpu();

  const bool is_target = !target || *target == rank;
  OptimizerStates states;
  std::vector<std::vector<at::Tensor>> received(static_cast<std::size_t>(group.world_size()));
  for (std::size_t i = 0; is_target && i < parameters.size(); ++i) {
    if (row_of(i)[0].item().toLong() == 0) continue;
    const auto& [parameter, owner] = parameters[i];
    auto state = make_state(kind);
    Kind::visit_state(*state, ReadFields{row_of(i).narrow(0, 1, fields), parameter,
                                         received[static_cast<std::size_t>(owner)]});
    states[parameter.unsafeGetTensorImpl()] = std::move(state);
  }
  for (int owner = 0; owner < group.world_size(); ++owner) {
    std::vector<at::Tensor>& tensors = received[static_cast<std::size_t>(owner)];
    if (owner != rank) {
      if (is_target) TensorTransfer(group, owner, target).run(tensors);
      continue;
    }
    if (target != rank) TensorTransfer(group, owner, target).run(own);
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(own[i]);
  }
  return is_target ? optimizer_state_dict(optimizer, states) : c10::IValue();
}

}  // namespace

c10::IValue consolidate_state(const torch::optim::Optimizer& optimizer,
                              const std::vector<OwnedParameter>& parameters,
                              const ProcessGroup& group, std::optional<int> target) {
  if (target && (*target < 0 || *target >= group.world_size())) {
    throw UsageError(concat("consolidate the state of an optimizer on rank ", group.rank(),
                            ": target ", *target, " is no rank of a group of ",
                            group.world_size()));
  }
  const c10::NoGradGuard no_grad;
  c10::IValue dict;
  const bool known = with_optimizer_kind(optimizer, [&](auto kind) {
    dict = consolidate(kind, optimizer, parameters, group, target);
  });
  if (!known) {
    throw UsageError(concat("consolidate the state of an optimizer: snapshots know ",
                            kKnownOptimizers, "; use one of these"));
  }
  return dict;
}

}  // namespace lockstep::inline internal
