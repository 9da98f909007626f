// ShmBackend as a c10d::Backend: checks what LibTorch passes, then calls the methods of
// NativeBackend.
#include "lockstep/base/error.h"
#include "lockstep/comm/backends/flat_work.h"
#include "lockstep/comm/backends/shm/shm_backend.h"

namespace lockstep::inline internal {
namespace {

using shm::only;
using shm::op_of;
using shm::root_of;

// The one list of tensors that a call with a list for each of a rank's devices has.
const NativeBackend::Tensors& only_list(const char* call_takes,
                                        const std::vector<NativeBackend::Tensors>& lists) {
  if (lists.size() != 1) throw UsageError(call_takes);
  return lists[0];
}

}  // namespace

NativeBackend::WorkPtr ShmBackend::allreduce(Tensors& tensors,
                                             const c10d::AllreduceOptions& options) {
  return all_reduce(only(tensors), op_of(options.reduceOp), {.timeout = options.timeout});
}

NativeBackend::WorkPtr ShmBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  // One tensor: what is given twice is reduced once, as by Gloo.
  Tensors flat{flat_copy(tensors)};
  auto work = allreduce(flat, options);
  return flat_work(std::move(work), flat[0], tensors);
}

NativeBackend::WorkPtr ShmBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const int target = root_of("reduce", options.rootRank, options.rootTensor, getSize());
  return reduce(only(tensors), target, op_of(options.reduceOp), {.timeout = options.timeout});
}

NativeBackend::WorkPtr ShmBackend::broadcast(Tensors& tensors,
                                             const c10d::BroadcastOptions& options) {
  const int source = root_of("broadcast", options.rootRank, options.rootTensor, getSize());
  return broadcast(only(tensors), source, {.timeout = options.timeout});
}

NativeBackend::WorkPtr ShmBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& options) {
  return all_gather(only_list("all_gather takes one list of outputs", outputs), only(inputs),
                    {.timeout = options.timeout});
}

NativeBackend::WorkPtr ShmBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                   const c10d::AllgatherOptions& options) {
  return all_gather_into_tensor(output, input, {.timeout = options.timeout});
}

NativeBackend::WorkPtr ShmBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::GatherOptions& options) {
  const int target = root_of("gather", options.rootRank, 0, getSize());
  const CallTerms terms{.timeout = options.timeout};
  if (getRank() != target) {
    if (!outputs.empty()) throw UsageError("gather takes outputs on its target rank only");
    return gather(Tensors(), only(inputs), target, terms);
  }
  return gather(only_list("gather takes one list of outputs on its target", outputs), only(inputs),
                target, terms);
}

NativeBackend::WorkPtr ShmBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                           const c10d::ScatterOptions& options) {
  const int source = root_of("scatter", options.rootRank, 0, getSize());
  const CallTerms terms{.timeout = options.timeout};
  if (getRank() != source) {
    if (!inputs.empty()) throw UsageError("scatter takes inputs on its source rank only");
    return scatter(only(outputs), Tensors(), source, terms);
  }
  return scatter(only(outputs), only_list("scatter takes one list of inputs on its source", inputs),
                 source, terms);
}

NativeBackend::WorkPtr ShmBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ReduceScatterOptions& options) {
  return reduce_scatter(only(outputs), only_list("reduce_scatter takes one list of inputs", inputs),
                        op_of(options.reduceOp), {.timeout = options.timeout});
}

NativeBackend::WorkPtr ShmBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::ReduceScatterOptions& options) {
  return reduce_scatter_tensor(output, input, op_of(options.reduceOp),
                               {.timeout = options.timeout});
}

NativeBackend::WorkPtr ShmBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                            const c10d::AllToAllOptions& options) {
  return all_to_all(outputs, inputs, {.timeout = options.timeout});
}

NativeBackend::WorkPtr ShmBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                 std::vector<std::int64_t>& output_splits,
                                                 std::vector<std::int64_t>& input_splits,
                                                 const c10d::AllToAllOptions& options) {
  return all_to_all_single(output, input, output_splits, input_splits,
                           {.timeout = options.timeout});
}

NativeBackend::WorkPtr ShmBackend::barrier(const c10d::BarrierOptions& options) {
  return barrier(CallTerms{.timeout = options.timeout});
}

NativeBackend::WorkPtr ShmBackend::send(Tensors& tensors, int target, int tag) {
  return send(only(tensors), target, tag, {.timeout = kNoTimeout});
}

NativeBackend::WorkPtr ShmBackend::recvAnysource(Tensors& tensors, int tag) {
  return recv_from_any(only(tensors), tag, {.timeout = kNoTimeout});
}

NativeBackend::WorkPtr ShmBackend::recv(Tensors& tensors, int source, int tag) {
  return recv(only(tensors), source, tag, {.timeout = kNoTimeout});
}

}  // namespace lockstep::inline internal
