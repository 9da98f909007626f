#include <algorithm>
#include <numeric>

#include "lockstep/comm/internal/collective_call.h"
#include "lockstep/comm/internal/process_group_state.h"

namespace lockstep {
namespace {

CollectiveOptions common(const ReduceOptions& options) {
  return {.async_op = options.async_op, .timeout = options.timeout, .name = options.name};
}

std::int64_t rows(const at::Tensor& tensor) {
  return tensor.dim() == 0 ? 0 : tensor.size(0);
}

// The splits of all_to_all_single: empty stands for equal parts, else one count of rows per rank.
void check_splits(const CallSite& call, const char* argument, const at::Tensor& tensor,
                  const std::vector<std::int64_t>& splits) {
  const auto world_size = static_cast<std::size_t>(call.group.world_size);
  const std::int64_t sum = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  const bool negative = std::any_of(splits.begin(), splits.end(), [](auto n) { return n < 0; });
  const bool valid = splits.empty()
                         ? rows(tensor) % call.group.world_size == 0
                         : splits.size() == world_size && sum == rows(tensor) && !negative;
  if (!valid) {
    refuse(call, argument, " must divide the ", rows(tensor), " rows of the tensor among ",
           world_size, " ranks; it has ", splits.size(), " entries that sum to ", sum);
  }
}

std::vector<std::int64_t> elements(const std::vector<at::Tensor>& tensors) {
  std::vector<std::int64_t> counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(tensor.numel());
  return counts;
}

std::vector<std::int64_t> elements(const at::Tensor& tensor,
                                   const std::vector<std::int64_t>& splits, int world_size) {
  if (splits.empty()) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(world_size),
                                     tensor.numel() / world_size);
  }
  const std::int64_t row = rows(tensor) == 0 ? 0 : tensor.numel() / rows(tensor);
  std::vector<std::int64_t> counts;
  for (const std::int64_t split : splits) counts.push_back(split * row);
  return counts;
}

// Gloo and MPI have no others.
void check_tag(const CallSite& call, int tag) {
  if (tag < 0) refuse(call, "tag=", tag, "; 0 is the least");
}

}  // namespace

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
  check_only_on(call, target, "outputs", outputs, input);
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
  check_only_on(call, source, "inputs", inputs, output);
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

Work ProcessGroup::all_reduce(at::Tensor tensor, const ReduceOptions& options) const {
  const CallSite call{"all_reduce", state("all_reduce")};
  check_tensor(call, "tensor", tensor);
  check_reduce_op(call, options.op, tensor.scalar_type());
  return start_collective(
      call, CallSignature(call.operation).of(tensor).with(options.op), common(options),
      [&](auto& backend, auto& terms) { return backend.all_reduce(tensor, options.op, terms); });
}

Work ProcessGroup::reduce(at::Tensor tensor, int target, const ReduceOptions& options) const {
  const CallSite call{"reduce", state("reduce")};
  check_tensor(call, "tensor", tensor);
  check_rank(call, "target", target);
  check_reduce_op(call, options.op, tensor.scalar_type());
  const auto signature = CallSignature(call.operation).of(tensor).with(options.op).at_root(target);
  return start_collective(call, signature, common(options), [&](auto& backend, auto& terms) {
    return backend.reduce(tensor, target, options.op, terms);
  });
}

Work ProcessGroup::reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs,
                                  const ReduceOptions& options) const {
  const CallSite call{"reduce_scatter", state("reduce_scatter")};
  check_tensor(call, "output", output);
  check_one_per_rank(call, "inputs", inputs, output);
  check_reduce_op(call, options.op, output.scalar_type());
  if (!call.group.backend) output.copy_(inputs[0].view(output.sizes()));
  return start_collective(call, CallSignature(call.operation).of(output).with(options.op),
                          common(options), [&](auto& backend, auto& terms) {
                            return backend.reduce_scatter(output, inputs, options.op, terms);
                          });
}

Work ProcessGroup::reduce_scatter_tensor(at::Tensor output, at::Tensor input,
                                         const ReduceOptions& options) const {
  const CallSite call{"reduce_scatter_tensor", state("reduce_scatter_tensor")};
  check_tensor(call, "output", output);
  check_tensor(call, "input", input);
  check_same_dtype(call, output, input);
  check_scaled(call, "input", input, "output", output);
  check_reduce_op(call, options.op, output.scalar_type());
  if (!call.group.backend) output.copy_(input.view(output.sizes()));
  return start_collective(call, CallSignature(call.operation).of(output).with(options.op),
                          common(options), [&](auto& backend, auto& terms) {
                            return backend.reduce_scatter_tensor(output, input, options.op, terms);
                          });
}

Work ProcessGroup::all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                              const CollectiveOptions& options) const {
  const CallSite call{"all_to_all", state("all_to_all")};
  const auto world_size = static_cast<std::size_t>(call.group.world_size);
  if (outputs.size() != world_size || inputs.size() != world_size) {
    refuse(call, outputs.size(), " outputs and ", inputs.size(),
           " inputs given, one of each for each of ", world_size, " ranks is needed");
  }
  for (const at::Tensor& output : outputs) {
    check_tensor(call, "a tensor of outputs", output);
    check_same_dtype(call, output, outputs[0]);
  }
  for (const at::Tensor& input : inputs) {
    check_tensor(call, "a tensor of inputs", input);
    check_same_dtype(call, outputs[0], input);
  }
  if (!call.group.backend) outputs[0].copy_(inputs[0].view(outputs[0].sizes()));
  return start_exchange(
      call, CallSignature(call.operation).of(inputs[0].scalar_type()),
      {.sent = elements(inputs), .received = elements(outputs)}, options,
      [&](auto& backend, auto& terms) { return backend.all_to_all(outputs, inputs, terms); });
}

Work ProcessGroup::all_to_all_single(at::Tensor output, at::Tensor input,
                                     std::vector<std::int64_t> output_splits,
                                     std::vector<std::int64_t> input_splits,
                                     const CollectiveOptions& options) const {
  const CallSite call{"all_to_all_single", state("all_to_all_single")};
  check_tensor(call, "output", output);
  check_tensor(call, "input", input);
  check_same_dtype(call, output, input);
  check_splits(call, "output_splits", output, output_splits);
  check_splits(call, "input_splits", input, input_splits);
  if (!call.group.backend) output.copy_(input.view(output.sizes()));
  const int world_size = call.group.world_size;
  return start_exchange(call, CallSignature(call.operation).of(input.scalar_type()),
                        {.sent = elements(input, input_splits, world_size),
                         .received = elements(output, output_splits, world_size)},
                        options, [&](auto& backend, auto& terms) {
                          return backend.all_to_all_single(output, input, output_splits,
                                                           input_splits, terms);
                        });
}

Work ProcessGroup::send(at::Tensor tensor, int target, int tag,
                        const CollectiveOptions& options) const {
  const CallSite call{"send", state("send")};
  check_tensor(call, "tensor", tensor);
  check_peer(call, "target", target);
  check_tag(call, tag);
  return start_message(call, tensor, target, options, [&](auto& backend, auto& terms) {
    return backend.send(tensor, target, tag, terms);
  });
}

Work ProcessGroup::recv(at::Tensor tensor, int source, int tag,
                        const CollectiveOptions& options) const {
  const CallSite call{"recv", state("recv")};
  check_tensor(call, "tensor", tensor);
  check_peer(call, "source", source);
  check_tag(call, tag);
  return start_message(call, tensor, source, options, [&](auto& backend, auto& terms) {
    return backend.recv(tensor, source, tag, terms);
  });
}

}  // namespace lockstep
