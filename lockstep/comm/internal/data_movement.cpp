#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/comm/internal/collective_call.h"
#include "lockstep/comm/internal/process_group_state.h"

namespace lockstep {

Work ProcessGroup::broadcast(at::Tensor tensor, int source,
                             const CollectiveOptions& options) const {
  const CallSite call{"broadcast", state("broadcast")};
  check_tensor(call, "tensor", tensor);
  check_rank(call, "source", source);
  return start_collective(call, CallSignature(call.operation).of(tensor).at_root(source), options,
                          [&](c10d::Backend& backend, auto timeout) {
                            std::vector<at::Tensor> tensors{tensor};
                            c10d::BroadcastOptions arguments;
                            arguments.rootRank = source;
                            arguments.timeout = timeout;
                            return backend.broadcast(tensors, arguments);
                          });
}

Work ProcessGroup::all_gather(std::vector<at::Tensor> outputs, at::Tensor input,
                              const CollectiveOptions& options) const {
  const CallSite call{"all_gather", state("all_gather")};
  check_tensor(call, "input", input);
  check_one_per_rank(call, "outputs", outputs, input);
  if (!call.group.backend) outputs[0].copy_(input.view(outputs[0].sizes()));
  return start_collective(call, CallSignature(call.operation).of(input), options,
                          [&](c10d::Backend& backend, auto timeout) {
                            std::vector<std::vector<at::Tensor>> output_lists{std::move(outputs)};
                            std::vector<at::Tensor> inputs{input};
                            c10d::AllgatherOptions arguments;
                            arguments.timeout = timeout;
                            return backend.allgather(output_lists, inputs, arguments);
                          });
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
                          [&](c10d::Backend& backend, auto timeout) {
                            c10d::AllgatherOptions arguments;
                            arguments.timeout = timeout;
                            return backend._allgather_base(output, input, arguments);
                          });
}

Work ProcessGroup::gather(std::vector<at::Tensor> outputs, at::Tensor input, int target,
                          const CollectiveOptions& options) const {
  const CallSite call{"gather", state("gather")};
  check_tensor(call, "input", input);
  check_rank(call, "target", target);
  const bool is_target = call.group.rank == target;
  if (is_target) {
    check_one_per_rank(call, "outputs", outputs, input);
  } else {
    check_empty(call, "outputs", outputs, target);
  }
  if (!call.group.backend) outputs[0].copy_(input.view(outputs[0].sizes()));
  return start_collective(call, CallSignature(call.operation).of(input).at_root(target), options,
                          [&](c10d::Backend& backend, auto timeout) {
                            std::vector<std::vector<at::Tensor>> output_lists;
                            if (is_target) output_lists.push_back(std::move(outputs));
                            std::vector<at::Tensor> inputs{input};
                            c10d::GatherOptions arguments;
                            arguments.rootRank = target;
                            arguments.timeout = timeout;
                            return backend.gather(output_lists, inputs, arguments);
                          });
}

Work ProcessGroup::scatter(at::Tensor output, std::vector<at::Tensor> inputs, int source,
                           const CollectiveOptions& options) const {
  const CallSite call{"scatter", state("scatter")};
  check_tensor(call, "output", output);
  check_rank(call, "source", source);
  const bool is_source = call.group.rank == source;
  if (is_source) {
    check_one_per_rank(call, "inputs", inputs, output);
  } else {
    check_empty(call, "inputs", inputs, source);
  }
  if (!call.group.backend) output.copy_(inputs[0].view(output.sizes()));
  return start_collective(call, CallSignature(call.operation).of(output).at_root(source), options,
                          [&](c10d::Backend& backend, auto timeout) {
                            std::vector<at::Tensor> outputs{output};
                            std::vector<std::vector<at::Tensor>> input_lists;
                            if (is_source) input_lists.push_back(std::move(inputs));
                            c10d::ScatterOptions arguments;
                            arguments.rootRank = source;
                            arguments.timeout = timeout;
                            return backend.scatter(outputs, input_lists, arguments);
                          });
}

Work ProcessGroup::barrier(const CollectiveOptions& options) const {
  const CallSite call{"barrier", state("barrier")};
  return start_collective(call, CallSignature(call.operation), options,
                          [&](c10d::Backend& backend, auto timeout) {
                            c10d::BarrierOptions arguments;
                            arguments.timeout = timeout;
                            if (call.group.device.is_cuda()) arguments.device = call.group.device;
                            return backend.barrier(arguments);
                          });
}

}  // namespace lockstep
