#include "lockstep/comm/internal/native_collectives.h"

#include <set>

#include "lockstep/base/internal/check.h"
#include "lockstep/comm/internal/collective_call.h"
#include "lockstep/comm/internal/process_group_state.h"

namespace lockstep::inline internal {
namespace {

SharedMemory* shared_memory(const ProcessGroup::State& group) {
  return group.backend ? group.backend->shared_memory() : nullptr;
}

template <class... Parts>
[[noreturn]] void refuse_into(const CallSite& call, const Parts&... parts) {
  refuse(CallSite{"all_reduce_into", call.group}, parts...);
}

// Output and input have different dtypes.
void check_conversion(const CallSite& call, const at::Tensor& output, const at::Tensor& input,
                      ReduceOp op) {
  const auto from = input.scalar_type();
  const bool converts =
      output.scalar_type() == at::kFloat && (from == at::kHalf || from == at::kBFloat16);
  if (!converts) check_same_dtype(call, output, input);
  if (op != ReduceOp::kSum && op != ReduceOp::kAvg) {
    refuse_into(call, name_of(op), " of ", c10::toString(from),
                " into float32 is not defined; only SUM and AVG are");
  }
  const auto* const memory = shared_memory(call.group);
  const auto is_shared = [&](const at::Tensor& tensor) {
    return tensor.numel() == 0 || memory->is_shared(tensor);
  };
  if (memory != nullptr && is_shared(output) && is_shared(input)) return;
  refuse_into(
      call, c10::toString(from),
      " is reduced into float32 only in memory that the group shares; create output and input "
      "with allocate_tensor");
}

void check_sum_of_squares(const CallSite& call, const at::Tensor& sum, const at::Tensor& output) {
  if (shared_memory(call.group) == nullptr) {
    refuse_into(
        call,
        "sum_of_squares needs a group that shares memory; compute it from the output instead");
  }
  if (!at::isFloatingType(output.scalar_type())) {
    refuse_into(call, "sum_of_squares is not defined for ", c10::toString(output.scalar_type()));
  }
  if (!sum.is_cpu() || sum.scalar_type() != at::kDouble || sum.numel() != 1) {
    refuse_into(call, "sum_of_squares must be one float64 on the CPU, not ", sum.numel(), " ",
                c10::toString(sum.scalar_type()), " on ", sum.device().str());
  }
}

void check_scale(const CallSite& call, ReduceOp op) {
  if (op != ReduceOp::kAvg) {
    refuse_into(call, "scale is supported with AVG only, not with ", name_of(op));
  }
  if (shared_memory(call.group) == nullptr) {
    refuse_into(call, "scale needs a group that shares memory; multiply the input instead");
  }
}

}  // namespace

Work all_reduce_into(const ProcessGroup& group, const at::Tensor& output, const at::Tensor& input,
                     const ScaledReduction& reduction, const CollectiveOptions& options) {
  const CallSite call{"all_reduce", ProcessGroupAccess::state(group, "all_reduce_into")};
  check_tensor(call, "output", output);
  check_tensor(call, "input", input);
  if (output.numel() != input.numel()) {
    refuse_into(call, "output has ", output.numel(), " elements, input has ", input.numel());
  }
  if (output.scalar_type() != input.scalar_type())
    check_conversion(call, output, input, reduction.op);
  const at::Tensor& squares = reduction.sum_of_squares;
  if (squares.defined()) check_sum_of_squares(call, squares, output);
  check_reduce_op(call, reduction.op, output.scalar_type());
  if (reduction.scale != 1) check_scale(call, reduction.op);
  if (SharedMemory* const memory = shared_memory(call.group)) {
    return start_agreed(call, output.numel(), options, [&](auto&, auto& terms) {
      return memory->all_reduce_into(output, input, reduction, terms);
    });
  }
  if (!output.is_same(input)) output.copy_(input.view(output.sizes()));
  return start_agreed(call, output.numel(), options, [&](auto& backend, auto& terms) {
    return backend.all_reduce(output, reduction.op, terms);
  });
}

namespace {

// In a group of one rank it copies.
Work start_uncompared(const CallSite& call, const at::Tensor& output, const at::Tensor& input,
                      const CollectiveOptions& options, StartWork start) {
  check_tensor(call, "output", output);
  check_tensor(call, "input", input);
  check_same_dtype(call, output, input);
  if (!call.group.backend) output.copy_(input.view(output.sizes()));
  return start_agreed(call, input.numel(), options, start);
}

}  // namespace

Work all_gather_uncompared(const ProcessGroup& group, const at::Tensor& output,
                           const at::Tensor& input, const CollectiveOptions& options) {
  const CallSite call{"all_gather_into_tensor",
                      ProcessGroupAccess::state(group, "all_gather_uncompared")};
  check_scaled(call, "output", output, "input", input);
  return start_uncompared(call, output, input, options, [&](auto& backend, auto& terms) {
    return backend.all_gather_into_tensor(output, input, terms);
  });
}

Work all_to_all_uncompared(const ProcessGroup& group, const at::Tensor& output,
                           const at::Tensor& input, const CollectiveOptions& options) {
  const CallSite call{"all_to_all_single",
                      ProcessGroupAccess::state(group, "all_to_all_uncompared")};
  return start_uncompared(call, output, input, options, [&](auto& backend, auto& terms) {
    return backend.all_to_all_single(output, input, {}, {}, terms);
  });
}

Work recv_from_any(const ProcessGroup& group, const at::Tensor& tensor, int tag,
                   const CollectiveOptions& options, c10::intrusive_ptr<c10d::Work>& message) {
  const CallSite call{"recv", ProcessGroupAccess::state(group, "recv_from_any")};
  check_tensor(call, "tensor", tensor);
  if (tag < 0) refuse(call, "tag=", tag, "; 0 is the least");
  if (!call.group.backend) refuse(call, "there is no other rank in this group");
  return start_message(call, tensor, std::nullopt, options, [&](auto& backend, auto& terms) {
    message = backend.recv_from_any(tensor, tag, terms);
    return message;
  });
}

bool is_shared(const ProcessGroup& group, const at::Tensor& tensor) {
  const auto* const memory = shared_memory(ProcessGroupAccess::state(group, "is_shared"));
  return memory != nullptr && memory->is_shared(tensor);
}

std::optional<std::uint64_t> shared_offset(const ProcessGroup& group, const at::Tensor& tensor) {
  const auto* const memory = shared_memory(ProcessGroupAccess::state(group, "shared_offset"));
  return memory != nullptr ? memory->offset_of(tensor) : std::nullopt;
}

std::byte* shared_address(const ProcessGroup& group, std::uint64_t offset, std::uint64_t bytes) {
  auto* const memory = shared_memory(ProcessGroupAccess::state(group, "shared_address"));
  LOCKSTEP_ASSERT(memory != nullptr);
  return memory->address_of(offset, bytes);
}

namespace {

SeveralMachines* several_machines(const ProcessGroup::State& group) {
  return group.backend ? group.backend->several_machines() : nullptr;
}

}  // namespace

std::vector<std::vector<int>> ranks_by_machine(const ProcessGroup& group) {
  auto* const machines = several_machines(ProcessGroupAccess::state(group, "ranks_by_machine"));
  return machines != nullptr ? machines->ranks_by_machine() : std::vector<std::vector<int>>();
}

bool has_rank_per_machine(const ProcessGroup& group) {
  const ProcessGroup::State& state = ProcessGroupAccess::state(group, "has_rank_per_machine");
  if (shared_memory(state) != nullptr || several_machines(state) != nullptr) return false;
  // Over hierarchical the backend has looked.
  const std::set<int> machines(state.domains.begin(), state.domains.end());
  return state.backend_name == "hierarchical" ||
         machines.size() == static_cast<std::size_t>(state.world_size);
}

void barrier_of_machine(const ProcessGroup& group, const CollectiveOptions& options) {
  const CallSite call{"barrier", ProcessGroupAccess::state(group, "barrier_of_machine")};
  auto* const machines = several_machines(call.group);
  if (machines == nullptr) {
    group.barrier(options);
    return;
  }
  start_agreed(call, 1, options,
               [&](auto&, auto& terms) { return machines->barrier_of_machine(terms); });
}

Work sum_over_machines(const ProcessGroup& group, const at::Tensor& tensor,
                       const CollectiveOptions& options) {
  const CallSite call{"sum_over_machines", ProcessGroupAccess::state(group, "sum_over_machines")};
  check_tensor(call, "tensor", tensor);
  auto* const machines = several_machines(call.group);
  LOCKSTEP_ASSERT(machines != nullptr);
  // Some ranks make fewer such calls: collectives have the same numbers on all ranks.
  return start_message(call, tensor, std::nullopt, options, [&](auto&, auto& terms) {
    return machines->sum_over_machines(tensor, terms);
  });
}

std::int64_t bucket_bytes(const ProcessGroup& group) {
  const auto& backend = ProcessGroupAccess::state(group, "bucket_bytes").backend;
  return backend ? backend->bucket_bytes() : 0;
}

}  // namespace lockstep::inline internal
