#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/collective_call.h"
#include "lockstep/comm/internal/process_group_state.h"

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

template <class Options>
CollectiveOptions common(const Options& options) {
  return {.async_op = options.async_op, .timeout = options.timeout, .name = options.name};
}

[[noreturn]] void refuse_into(const CallSite& call, const std::string& reason) {
  throw UsageError(concat("all_reduce_into of group '", call.group.name, "' on rank ",
                          call.group.rank, ": ", reason));
}

// Of results of another dtype than the inputs'.
void check_conversion(const CallSite& call, const at::Tensor& output, const at::Tensor& input) {
  const auto from = input.scalar_type();
  const bool converts =
      output.scalar_type() == at::kFloat && (from == at::kHalf || from == at::kBFloat16);
  if (!converts) check_same_dtype(call, output, input);
  const auto& is_shared = call.group.is_shared;
  if (is_shared && (output.numel() == 0 || (is_shared(output) && is_shared(input)))) return;
  refuse_into(call, concat(c10::toString(from),
                           " is reduced into float32 only where the group shares memory and output "
                           "and input lie in it; take both from allocate_tensor"));
}

void check_sum_of_squares(const CallSite& call, const at::Tensor& sum, const at::Tensor& output) {
  if (!call.group.all_reduce_into) {
    refuse_into(call,
                "sum_of_squares is worked out only where the group shares memory; leave it out and "
                "take it of the output");
  }
  if (!at::isFloatingType(output.scalar_type())) {
    refuse_into(call,
                concat("sum_of_squares is not defined for ", c10::toString(output.scalar_type())));
  }
  if (!sum.is_cpu() || sum.scalar_type() != at::kDouble || sum.numel() != 1) {
    refuse_into(call, concat("sum_of_squares must be one float64 on the CPU, not ", sum.numel(),
                             " ", c10::toString(sum.scalar_type()), " on ", sum.device().str()));
  }
}

void check_scale(const CallSite& call, ReduceOp op) {
  if (op != ReduceOp::kAvg) {
    refuse_into(call, concat("scale goes with AVG, not with ", reduce_op_name(op)));
  }
  if (!call.group.all_reduce_into) {
    refuse_into(call,
                "the result is scaled only where the group shares memory; multiply the input");
  }
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
                                   const ReduceIntoOptions& options) const {
  const CallSite call{"all_reduce", state("all_reduce_into")};
  check_tensor(call, "output", output);
  check_tensor(call, "input", input);
  if (output.numel() != input.numel()) {
    refuse_into(call,
                concat("output has ", output.numel(), " elements, input has ", input.numel()));
  }
  if (output.scalar_type() != input.scalar_type()) check_conversion(call, output, input);
  if (options.sum_of_squares.defined()) check_sum_of_squares(call, options.sum_of_squares, output);
  check_reduce_op(call, options.op, output.scalar_type());
  if (options.scale != 1) check_scale(call, options.op);
  const auto& group = call.group;
  if (group.all_reduce_into) {
    return start_agreed(call, common(options), [&](c10d::Backend&, auto timeout) {
      return group.all_reduce_into(output, input, options, timeout);
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
