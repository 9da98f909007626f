#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/check.h"
#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/collective_call.h"
#include "lockstep/comm/process_group_state.h"

namespace lockstep {
namespace {

c10d::ReduceOp::RedOpType c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kAvg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kBand:
      return c10d::ReduceOp::BAND;
    case ReduceOp::kBor:
      return c10d::ReduceOp::BOR;
    case ReduceOp::kBxor:
      return c10d::ReduceOp::BXOR;
  }
  LOCKSTEP_ASSERT(false);
}

CollectiveOptions common(const ReduceOptions& options) {
  return {.async_op = options.async_op, .timeout = options.timeout};
}

}  // namespace

Work ProcessGroup::all_reduce(at::Tensor tensor, const ReduceOptions& options) const {
  const CallSite call{"all_reduce", state("all_reduce")};
  check_tensor(call, "tensor", tensor);
  check_reduce_op(call, options.op, tensor.scalar_type());
  return start_collective(call, CallSignature(call.operation).of(tensor).with(options.op),
                          common(options), [&](c10d::Backend& backend, auto timeout) {
                            std::vector<at::Tensor> tensors{tensor};
                            c10d::AllreduceOptions arguments;
                            arguments.reduceOp = c10d_op(options.op);
                            arguments.timeout = timeout;
                            return backend.allreduce(tensors, arguments);
                          });
}

Work ProcessGroup::all_reduce_into(at::Tensor output, at::Tensor input,
                                   const ReduceOptions& options) const {
  const CallSite call{"all_reduce", state("all_reduce_into")};
  check_tensor(call, "output", output);
  check_tensor(call, "input", input);
  check_same_dtype(call, output, input);
  if (output.numel() != input.numel()) {
    throw UsageError(concat("all_reduce_into of group '", call.group.name, "' on rank ",
                            call.group.rank, ": output has ", output.numel(),
                            " elements, input has ", input.numel()));
  }
  check_reduce_op(call, options.op, output.scalar_type());
  const auto& group = call.group;
  if (group.all_reduce_into) {
    return start_agreed(call, common(options), [&](c10d::Backend&, auto timeout) {
      return group.all_reduce_into(output, input, options.op, timeout);
    });
  }
  if (!output.is_same(input)) output.copy_(input.view(output.sizes()));
  if (output.numel() == 0) return {};
  return start_agreed(call, common(options), [&](c10d::Backend& backend, auto timeout) {
    std::vector<at::Tensor> tensors{output};
    c10d::AllreduceOptions arguments;
    arguments.reduceOp = c10d_op(options.op);
    arguments.timeout = timeout;
    return backend.allreduce(tensors, arguments);
  });
}

Work ProcessGroup::reduce(at::Tensor tensor, int target, const ReduceOptions& options) const {
  const CallSite call{"reduce", state("reduce")};
  check_tensor(call, "tensor", tensor);
  check_rank(call, "target", target);
  check_reduce_op(call, options.op, tensor.scalar_type());
  const auto signature = CallSignature(call.operation).of(tensor).with(options.op).at_root(target);
  return start_collective(call, signature, common(options),
                          [&](c10d::Backend& backend, auto timeout) {
                            std::vector<at::Tensor> tensors{tensor};
                            c10d::ReduceOptions arguments;
                            arguments.reduceOp = c10d_op(options.op);
                            arguments.rootRank = target;
                            arguments.timeout = timeout;
                            return backend.reduce(tensors, arguments);
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
                          common(options), [&](c10d::Backend& backend, auto timeout) {
                            std::vector<at::Tensor> outputs{output};
                            std::vector<std::vector<at::Tensor>> input_lists{std::move(inputs)};
                            c10d::ReduceScatterOptions arguments;
                            arguments.reduceOp = c10d_op(options.op);
                            arguments.timeout = timeout;
                            return backend.reduce_scatter(outputs, input_lists, arguments);
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
                          common(options), [&](c10d::Backend& backend, auto timeout) {
                            c10d::ReduceScatterOptions arguments;
                            arguments.reduceOp = c10d_op(options.op);
                            arguments.timeout = timeout;
                            return backend._reduce_scatter_base(output, input, arguments);
                          });
}

}  // namespace lockstep
