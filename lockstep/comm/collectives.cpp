#include <algorithm>
#include <numeric>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/check.h"
#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/process_group_state.h"
#include "lockstep/comm/tensor_check.h"
#include "lockstep/comm/work_state.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;

enum class Kind { kCollective, kPointToPoint };

// Starts a collective and gives it its name: `start` gets the deadline and returns the backend's
// work.
template <class Options, class Start>
Work run(const CallSite& call, const Options& options, Start&& start,
         Kind kind = Kind::kCollective) {
  const ProcessGroup::State& group = call.group;
  const auto timeout = options.timeout.value_or(group.timeout);
  check_timeout(call, timeout);
  const bool collective = kind == Kind::kCollective;
  CollectiveName name{call.operation, group.name, group.rank,
                      collective ? group.sequence++ : group.messages++, timeout};
  c10::intrusive_ptr<c10d::Work> work;
  try {
    work = start(timeout);
  } catch (...) {
    rethrow_named(name);
  }
  Work result(std::make_shared<const Work::State>(std::move(work), std::move(name),
                                                  Deadline::after(timeout), collective));
  if (!options.async_op) result.wait();
  return result;
}

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
    throw UsageError(concat(call.operation, " of group '", call.group.name, "' on rank ",
                            call.group.rank, ": ", argument, " must divide the ", rows(tensor),
                            " rows of the tensor among ", world_size, " ranks; it has ",
                            splits.size(), " entries that sum to ", sum));
  }
}

}  // namespace

Work ProcessGroup::broadcast(at::Tensor tensor, int source,
                             const CollectiveOptions& options) const {
  const CallSite call{"broadcast", state("broadcast")};
  check_tensor(call, "tensor", tensor);
  check_rank(call, "source", source);
  if (!call.group.backend || tensor.numel() == 0) return {};
  return run(call, options, [&](auto timeout) {
    Tensors tensors{tensor};
    c10d::BroadcastOptions arguments;
    arguments.rootRank = source;
    arguments.timeout = timeout;
    return call.group.backend->broadcast(tensors, arguments);
  });
}

Work ProcessGroup::all_reduce(at::Tensor tensor, const ReduceOptions& options) const {
  const CallSite call{"all_reduce", state("all_reduce")};
  check_tensor(call, "tensor", tensor);
  check_reduce_op(call, options.op, tensor.scalar_type());
  if (!call.group.backend || tensor.numel() == 0) return {};
  return run(call, options, [&](auto timeout) {
    Tensors tensors{tensor};
    c10d::AllreduceOptions arguments;
    arguments.reduceOp = c10d_op(options.op);
    arguments.timeout = timeout;
    return call.group.backend->allreduce(tensors, arguments);
  });
}

Work ProcessGroup::reduce(at::Tensor tensor, int target, const ReduceOptions& options) const {
  const CallSite call{"reduce", state("reduce")};
  check_tensor(call, "tensor", tensor);
  check_rank(call, "target", target);
  check_reduce_op(call, options.op, tensor.scalar_type());
  if (!call.group.backend || tensor.numel() == 0) return {};
  return run(call, options, [&](auto timeout) {
    Tensors tensors{tensor};
    c10d::ReduceOptions arguments;
    arguments.reduceOp = c10d_op(options.op);
    arguments.rootRank = target;
    arguments.timeout = timeout;
    return call.group.backend->reduce(tensors, arguments);
  });
}

Work ProcessGroup::all_gather(Tensors outputs, at::Tensor input,
                              const CollectiveOptions& options) const {
  const CallSite call{"all_gather", state("all_gather")};
  check_tensor(call, "input", input);
  check_one_per_rank(call, "outputs", outputs, input);
  if (input.numel() == 0) return {};
  if (!call.group.backend) {
    outputs[0].copy_(input.view(outputs[0].sizes()));
    return {};
  }
  return run(call, options, [&](auto timeout) {
    std::vector<Tensors> output_lists{std::move(outputs)};
    Tensors inputs{input};
    c10d::AllgatherOptions arguments;
    arguments.timeout = timeout;
    return call.group.backend->allgather(output_lists, inputs, arguments);
  });
}

Work ProcessGroup::all_gather_into_tensor(at::Tensor output, at::Tensor input,
                                          const CollectiveOptions& options) const {
  const CallSite call{"all_gather_into_tensor", state("all_gather_into_tensor")};
  check_tensor(call, "output", output);
  check_tensor(call, "input", input);
  check_same_dtype(call, output, input);
  check_scaled(call, "output", output, "input", input);
  if (input.numel() == 0) return {};
  if (!call.group.backend) {
    output.copy_(input.view(output.sizes()));
    return {};
  }
  return run(call, options, [&](auto timeout) {
    c10d::AllgatherOptions arguments;
    arguments.timeout = timeout;
    return call.group.backend->_allgather_base(output, input, arguments);
  });
}

Work ProcessGroup::gather(Tensors outputs, at::Tensor input, int target,
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
  if (input.numel() == 0) return {};
  if (!call.group.backend) {
    outputs[0].copy_(input.view(outputs[0].sizes()));
    return {};
  }
  return run(call, options, [&](auto timeout) {
    std::vector<Tensors> output_lists;
    if (is_target) output_lists.push_back(std::move(outputs));
    Tensors inputs{input};
    c10d::GatherOptions arguments;
    arguments.rootRank = target;
    arguments.timeout = timeout;
    return call.group.backend->gather(output_lists, inputs, arguments);
  });
}

Work ProcessGroup::scatter(at::Tensor output, Tensors inputs, int source,
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
  if (output.numel() == 0) return {};
  if (!call.group.backend) {
    output.copy_(inputs[0].view(output.sizes()));
    return {};
  }
  return run(call, options, [&](auto timeout) {
    Tensors outputs{output};
    std::vector<Tensors> input_lists;
    if (is_source) input_lists.push_back(std::move(inputs));
    c10d::ScatterOptions arguments;
    arguments.rootRank = source;
    arguments.timeout = timeout;
    return call.group.backend->scatter(outputs, input_lists, arguments);
  });
}

Work ProcessGroup::reduce_scatter(at::Tensor output, Tensors inputs,
                                  const ReduceOptions& options) const {
  const CallSite call{"reduce_scatter", state("reduce_scatter")};
  check_tensor(call, "output", output);
  check_one_per_rank(call, "inputs", inputs, output);
  check_reduce_op(call, options.op, output.scalar_type());
  if (output.numel() == 0) return {};
  if (!call.group.backend) {
    output.copy_(inputs[0].view(output.sizes()));
    return {};
  }
  return run(call, options, [&](auto timeout) {
    Tensors outputs{output};
    std::vector<Tensors> input_lists{std::move(inputs)};
    c10d::ReduceScatterOptions arguments;
    arguments.reduceOp = c10d_op(options.op);
    arguments.timeout = timeout;
    return call.group.backend->reduce_scatter(outputs, input_lists, arguments);
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
  if (output.numel() == 0) return {};
  if (!call.group.backend) {
    output.copy_(input.view(output.sizes()));
    return {};
  }
  return run(call, options, [&](auto timeout) {
    c10d::ReduceScatterOptions arguments;
    arguments.reduceOp = c10d_op(options.op);
    arguments.timeout = timeout;
    return call.group.backend->_reduce_scatter_base(output, input, arguments);
  });
}

Work ProcessGroup::all_to_all(Tensors outputs, Tensors inputs,
                              const CollectiveOptions& options) const {
  const CallSite call{"all_to_all", state("all_to_all")};
  const auto world_size = static_cast<std::size_t>(call.group.world_size);
  if (outputs.size() != world_size || inputs.size() != world_size) {
    throw UsageError(concat("all_to_all of group '", call.group.name, "' on rank ", call.group.rank,
                            ": ", outputs.size(), " outputs and ", inputs.size(),
                            " inputs given, one of each for each of ", world_size,
                            " ranks is needed"));
  }
  for (const at::Tensor& output : outputs) check_tensor(call, "a tensor of outputs", output);
  for (const at::Tensor& input : inputs) {
    check_tensor(call, "a tensor of inputs", input);
    check_same_dtype(call, outputs[0], input);
  }
  if (!call.group.backend) {
    outputs[0].copy_(inputs[0].view(outputs[0].sizes()));
    return {};
  }
  return run(call, options, [&](auto timeout) {
    c10d::AllToAllOptions arguments;
    arguments.timeout = timeout;
    return call.group.backend->alltoall(outputs, inputs, arguments);
  });
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
  if (!call.group.backend) {
    output.copy_(input.view(output.sizes()));
    return {};
  }
  return run(call, options, [&](auto timeout) {
    c10d::AllToAllOptions arguments;
    arguments.timeout = timeout;
    return call.group.backend->alltoall_base(output, input, output_splits, input_splits, arguments);
  });
}

Work ProcessGroup::barrier(const CollectiveOptions& options) const {
  const CallSite call{"barrier", state("barrier")};
  if (!call.group.backend) return {};
  return run(call, options, [&](auto timeout) {
    c10d::BarrierOptions arguments;
    arguments.timeout = timeout;
    if (call.group.device.is_cuda()) arguments.device = call.group.device;
    return call.group.backend->barrier(arguments);
  });
}

Work ProcessGroup::send(at::Tensor tensor, int target, int tag,
                        const CollectiveOptions& options) const {
  const CallSite call{"send", state("send")};
  check_tensor(call, "tensor", tensor);
  check_peer(call, "target", target);
  if (tensor.numel() == 0) return {};
  return run(
      call, options,
      [&](auto) {
        Tensors tensors{tensor};
        return call.group.backend->send(tensors, target, tag);
      },
      Kind::kPointToPoint);
}

Work ProcessGroup::recv(at::Tensor tensor, int source, int tag,
                        const CollectiveOptions& options) const {
  const CallSite call{"recv", state("recv")};
  check_tensor(call, "tensor", tensor);
  check_peer(call, "source", source);
  if (tensor.numel() == 0) return {};
  return run(
      call, options,
      [&](auto) {
        Tensors tensors{tensor};
        return call.group.backend->recv(tensors, source, tag);
      },
      Kind::kPointToPoint);
}

}  // namespace lockstep
