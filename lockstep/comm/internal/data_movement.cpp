#include "lockstep/comm/internal/collective_call.h"
#include "lockstep/comm/internal/process_group_state.h"

namespace lockstep {

Work ProcessGroup::broadcast(at::Tensor tensor, int source,
                             const CollectiveOptions& options) const {
  const CallSite call{"broadcast", state("broadcast")};
  check_tensor(call, "tensor", tensor);
  check_rank(call, "source", source);
  return start_collective(
      call, CallSignature(call.operation).of(tensor).at_root(source), options,
      [&](auto& backend, auto& terms) { return backend.broadcast(tensor, source, terms); });
}

Work ProcessGroup::all_gather(std::vector<at::Tensor> outputs, at::Tensor input,
                              const CollectiveOptions& options) const {
  const CallSite call{"all_gather", state("all_gather")};
  check_tensor(call, "input", input);
  check_one_per_rank(call, "outputs", outputs, input);
  if (!call.group.backend) outputs[0].copy_(input.view(outputs[0].sizes()));
  return start_collective(
      call, CallSignature(call.operation).of(input), options,
      [&](auto& backend, auto& terms) { return backend.all_gather(outputs, input, terms); });
}

Work ProcessGroup::all_gather_into_tensor(at::Tensor output, at::Tensor input,
                                          const CollectiveOptions& options) const {
  const CallSite call{"all_gather_into_tensor", state("all_gather_into_tensor")};
  check_tensor(call, "output", output);
  check_tensor(call, "input", input);
  check_same_dtype(call, output, input);
  check_scaled(call, "output", output, "input", input);
  if (!call.group.backend) output.copy_(input.view(output.sizes()));
  return start_collective(call, CallSignature(call.operation).of(input), options,
                          [&](auto& backend, auto& terms) {
                            return backend.all_gather_into_tensor(output, input, terms);
                          });
}

Work ProcessGroup::gather(std::vector<at::Tensor> outputs, at::Tensor input, int target,
                          const CollectiveOptions& options) const {
  const CallSite call{"gather", state("gather")};
  check_tensor(call, "input", input);
  check_rank(call, "target", target);
  if (call.group.rank == target) {
    check_one_per_rank(call, "outputs", outputs, input);
  } else {
    check_empty(call, "outputs", outputs, target);
  }
  if (!call.group.backend) outputs[0].copy_(input.view(outputs[0].sizes()));
  return start_collective(
      call, CallSignature(call.operation).of(input).at_root(target), options,
      [&](auto& backend, auto& terms) { return backend.gather(outputs, input, target, terms); });
}

Work ProcessGroup::scatter(at::Tensor output, std::vector<at::Tensor> inputs, int source,
                           const CollectiveOptions& options) const {
  const CallSite call{"scatter", state("scatter")};
  check_tensor(call, "output", output);
  check_rank(call, "source", source);
  if (call.group.rank == source) {
    check_one_per_rank(call, "inputs", inputs, output);
  } else {
    check_empty(call, "inputs", inputs, source);
  }
  if (!call.group.backend) output.copy_(inputs[0].view(output.sizes()));
  return start_collective(
      call, CallSignature(call.operation).of(output).at_root(source), options,
      [&](auto& backend, auto& terms) { return backend.scatter(output, inputs, source, terms); });
}

Work ProcessGroup::barrier(const CollectiveOptions& options) const {
  const CallSite call{"barrier", state("barrier")};
  return start_collective(call, CallSignature(call.operation), options,
                          [&](auto& backend, auto& terms) { return backend.barrier(terms); });
}

}  // namespace lockstep
