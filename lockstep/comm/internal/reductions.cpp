#include "lockstep/comm/internal/collective_call.h"
#include "lockstep/comm/internal/process_group_state.h"

namespace lockstep {
namespace {

template <class Options>
CollectiveOptions common(const Options& options) {
  return {.async_op = options.async_op, .timeout = options.timeout, .name = options.name};
}

}  // namespace

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

}  // namespace lockstep
