// Calls of TorchBackend on several tensors, and batches of calls.
#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "python/src/python_errors.h"
#include "python/src/torch_backend.h"

namespace lockstep::python {

using Use = Staging::Use;

void TorchBackend::startCoalescing() {
  const internal::MutexLock lock(batch_mutex_);
  batch_.emplace();  // instead of a batch that an error left: c10d does not end that
}

TorchBackend::WorkPtr TorchBackend::endCoalescing() {
  Batch batch;
  {
    const internal::MutexLock lock(batch_mutex_);
    if (!batch_) throw UsageError("end_coalescing: nothing is being coalesced");
    batch = std::move(*batch_);
    batch_.reset();
  }
  // Ranks may send each other batches of messages that the others take no part in.
  const Kind kind{c10d::OpType::COALESCED, "lockstep:coalesced", true, !batch.has_collective};
  Tensors outputs;
  for (const auto& call : batch.calls) {
    const auto of_call = call->result();
    outputs.insert(outputs.end(), of_call.begin(), of_call.end());
  }
  auto work = make_work(kind, {}, outputs);
  for (const auto& call : batch.calls) {
    for (const auto& part : call->parts()) work->add(part);
  }
  return track(std::move(work), kind);
}

bool TorchBackend::is_coalescing() {
  const internal::MutexLock lock(batch_mutex_);
  return batch_.has_value();
}

void TorchBackend::add_to_batch(const c10::intrusive_ptr<TorchWork>& work, const Kind& kind) {
  const internal::MutexLock lock(batch_mutex_);
  if (!batch_) return;
  // A batch that an exception of the program left open must not keep all calls after it.
  if (batch_->calls.size() >= batch_->most_calls) {
    std::erase_if(batch_->calls, [](const auto& call) { return call->has_succeeded(); });
    batch_->most_calls = std::max(batch_->most_calls, 2 * batch_->calls.size());
  }
  batch_->calls.push_back(work);
  batch_->has_collective |= !kind.is_message;
}

void TorchBackend::forget_batch() {
  const internal::MutexLock lock(batch_mutex_);
  batch_.reset();
}

TorchBackend::WorkPtr TorchBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  if (tensors.empty()) throw UsageError("all_reduce_coalesced: no tensors given");
  const ReduceOp op = reduce_op("all_reduce_coalesced", options.reduceOp);
  const c10::NoGradGuard no_grad;
  Tensors flat_parts;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.scalar_type() != tensors[0].scalar_type()) {
      throw UsageError(concat("all_reduce_coalesced: tensors of ",
                              c10::toString(tensors[0].scalar_type()), " and of ",
                              c10::toString(tensor.scalar_type()), "; make one call a dtype"));
    }
    if (tensor.layout() != at::kStrided) {
      throw UsageError("all_reduce_coalesced: takes dense tensors; pass a to_dense() copy");
    }
    flat_parts.push_back(tensor.detach().reshape({-1}));
  }
  // One tensor: what is given twice is reduced once.
  const at::Tensor flat = at::cat(flat_parts).resolve_conj();
  Staging staging("all_reduce_coalesced", Use::kReduce, op);
  const at::Tensor staged = staging.in_out(flat);
  const auto write_outputs = [flat, outputs = tensors] {
    const c10::NoGradGuard no_gradients;
    std::int64_t offset = 0;
    for (const at::Tensor& output : outputs) {
      const c10::InferenceMode as_output(output.is_inference());
      output.detach().copy_(flat.narrow(0, offset, output.numel()).view(output.sizes()));
      offset += output.numel();
    }
  };
  return run(
      {c10d::OpType::ALLREDUCE_COALESCED, "lockstep:all_reduce", options.asyncOp}, staging, tensors,
      tensors, options.timeout,
      [&](const auto& terms) { return group_.all_reduce(staged, with_op(terms, op)); },
      write_outputs);
}

TorchBackend::WorkPtr TorchBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  if (outputs.size() != static_cast<std::size_t>(getSize())) {
    throw UsageError(concat("all_gather_coalesced: ", outputs.size(),
                            " lists of outputs, one for each of ", getSize(), " ranks is needed"));
  }
  Tensors all_outputs;
  for (const Tensors& list : outputs) {
    if (list.size() != inputs.size()) {
      throw UsageError(concat("all_gather_coalesced: a list of ", list.size(), " outputs for ",
                              inputs.size(), " inputs"));
    }
    all_outputs.insert(all_outputs.end(), list.begin(), list.end());
  }
  const WithoutGil without_gil;
  const Kind kind{c10d::OpType::ALLGATHER_COALESCED, "lockstep:all_gather", options.asyncOp};
  auto work = make_work(kind, inputs, all_outputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors targets;
    for (const Tensors& list : outputs) targets.push_back(list[i]);
    check_alike("all_gather_coalesced", targets, inputs[i]);
    Staging staging("all_gather_coalesced", Use::kMove);
    const at::Tensor source = staging.in(inputs[i]);
    const Tensors staged = staging.out(targets);
    work->add(start_part(staging, options.timeout, [&](const auto& terms) {
      return group_.all_gather(staged, source, terms);
    }));
  }
  return track(std::move(work), kind);
}

// One call for each pair.
TorchBackend::WorkPtr TorchBackend::run_pairs(const char* operation, const Kind& kind,
                                              const PairUse& use, const Tensors& outputs,
                                              const Tensors& inputs,
                                              std::chrono::milliseconds timeout, StartPair start) {
  if (outputs.size() != inputs.size()) {
    throw UsageError(
        concat(operation, ": ", outputs.size(), " outputs for ", inputs.size(), " inputs"));
  }
  const WithoutGil without_gil;
  auto work = make_work(kind, inputs, outputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (outputs[i].scalar_type() != inputs[i].scalar_type()) {
      check_alike(operation, {outputs[i]}, inputs[i]);
    }
    Staging staging(operation, use.use, use.op);
    const at::Tensor source = staging.in(inputs[i]);
    const at::Tensor target = staging.out(outputs[i]);
    work->add(start_part(staging, timeout,
                         [&](const auto& terms) { return start(target, source, terms); }));
  }
  return track(std::move(work), kind);
}

TorchBackend::WorkPtr TorchBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return run_pairs("all_gather_into_tensor_coalesced",
                   {c10d::OpType::COALESCED, "lockstep:_all_gather_base", options.asyncOp},
                   {.use = Use::kMove}, outputs, inputs, options.timeout,
                   [&](const at::Tensor& target, const at::Tensor& source, const auto& terms) {
                     return group_.all_gather_into_tensor(target, source, terms);
                   });
}

TorchBackend::WorkPtr TorchBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  const ReduceOp op = reduce_op("reduce_scatter_tensor_coalesced", options.reduceOp);
  return run_pairs("reduce_scatter_tensor_coalesced",
                   {c10d::OpType::COALESCED, "lockstep:_reduce_scatter_base", options.asyncOp},
                   {.use = Use::kReduce, .op = op}, outputs, inputs, options.timeout,
                   [&](const at::Tensor& target, const at::Tensor& source, const auto& terms) {
                     return group_.reduce_scatter_tensor(target, source, with_op(terms, op));
                   });
}

}  // namespace lockstep::python
