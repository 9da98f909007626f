#include "lockstep/comm/backends/shm/shm_backend.h"

#include <algorithm>

#include <ATen/ops/from_blob.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/backends/flat_work.h"
#include "lockstep/comm/backends/shm/shm_work.h"
#include "lockstep/comm/backends/shm/transfer.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

namespace {

using shm::Call;
using shm::CallKind;
using shm::check_count;
using shm::check_same_size;
using shm::only;
using shm::op_of;
using shm::Piece;
using shm::piece_of;
using shm::pieces_of;
using shm::root_of;

shm::OwnCopy own_copy(const Piece& target, const Piece& source) {
  return {.target = target.data,
          .source = source.data,
          .expected_bytes = target.bytes,
          .bytes = source.bytes};
}

// In equal parts of its elements.
std::vector<Piece> split_flat(const at::Tensor& tensor, int ranks) {
  piece_of(tensor);  // Checks it.
  return shm::split(tensor.view({-1}), {}, ranks);
}

void append(std::vector<at::Tensor>& all, const std::vector<at::Tensor>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

ShmBackend::ShmBackend(std::unique_ptr<shm::Engine> engine, std::chrono::milliseconds timeout)
    : Backend(engine->team().rank(), engine->team().ranks()),
      engine_(std::move(engine)),
      heap_(std::make_shared<shm::Heap>(engine_->team().segment(), engine_->team().rank())),
      timeout_(timeout) {}

bool ShmBackend::supportsTensorAlloc(c10::DeviceIndex) {
  return true;
}

at::Tensor ShmBackend::allocateTensor(long size, at::TensorOptions options) {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  std::byte* const data =
      heap_->allocate(static_cast<std::uint64_t>(size) * c10::elementSize(dtype));
  return at::from_blob(
      data, {size}, [heap = heap_](void* block) { heap->free(static_cast<std::byte*>(block)); },
      options.device(at::kCPU).requires_grad(false));
}

bool ShmBackend::is_shared(const at::Tensor& tensor) const {
  return tensor.is_cpu() && tensor.is_non_overlapping_and_dense() &&
         heap_->offset_of(tensor.const_data_ptr(), tensor.nbytes()).has_value();
}

Reduction ShmBackend::reduction(Element element, ReduceOp op) const {
  shm::check_reduction(element, op);
  return {.element = element, .op = op, .factor = 1.0 / getSize()};
}

std::chrono::milliseconds ShmBackend::time_allowed(std::chrono::milliseconds timeout) const {
  return timeout > kNoTimeout ? timeout : timeout_;
}

ShmBackend::WorkPtr ShmBackend::start(const char* name, std::unique_ptr<shm::Operation> operation,
                                      Tensors tensors, std::chrono::milliseconds timeout) {
  auto task = std::make_shared<shm::TensorTask>(name, time_allowed(timeout));
  if (!next_name_.empty()) operation->set_name(next_name_);
  next_name_.clear();
  task->operation = std::move(operation);
  task->tensors = std::move(tensors);
  engine_->start(task);
  return c10::make_intrusive<shm::ShmWork>(
      c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(this), *engine_,
      std::move(task));
}

void ShmBackend::name_next_call(std::string_view name) {
  next_name_ = name;
}

ShmBackend::WorkPtr ShmBackend::all_reduce_into(const at::Tensor& output, const at::Tensor& input,
                                                const ReduceIntoOptions& options,
                                                std::chrono::milliseconds timeout) {
  const Piece target = piece_of(output);
  const Piece source = piece_of(input);
  const auto offset = heap_->offset_of(target.data, target.bytes);
  Call call{.kind = CallKind::kAllReduce,
            .element = target.element,
            .op = options.op,
            .in_shared_memory = offset.has_value(),
            .elements = target.elements()};
  shm::ReduceBuffers buffers{.input = source.data, .output = target.data, .shared_offset = offset};
  if (source.element == target.element) {
    check_same_size(source, target);
  } else {
    call.converts = true;
    call.input_element = source.element;
    buffers.input_offset = heap_->offset_of(source.data, source.bytes).value_or(0);
  }
  Tensors tensors{output, input};
  if (options.sum_of_squares.defined()) {
    buffers.sum_of_squares = options.sum_of_squares.mutable_data_ptr<double>();
    tensors.push_back(options.sum_of_squares);
  }
  Reduction scaled = reduction(target.element, options.op);
  scaled.factor *= options.scale;
  return start(name(call.kind), make_all_reduce(call, scaled, buffers), std::move(tensors),
               timeout);
}

ShmBackend::WorkPtr ShmBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const auto piece = piece_of(only(tensors));
  const ReduceOp op = op_of(options.reduceOp);
  const Call call{.kind = CallKind::kAllReduce,
                  .element = piece.element,
                  .op = op,
                  .elements = piece.elements()};
  return start(name(call.kind),
               make_all_reduce(call, reduction(piece.element, op),
                               {.input = piece.data,
                                .output = piece.data,
                                .shared_offset = heap_->offset_of(piece.data, piece.bytes)}),
               tensors, options.timeout);
}

ShmBackend::WorkPtr ShmBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  // One tensor: what is given twice is reduced once, as by Gloo.
  Tensors flat{flat_copy(tensors)};
  auto work = allreduce(flat, options);
  return flat_work(std::move(work), flat[0], tensors);
}

ShmBackend::WorkPtr ShmBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const auto piece = piece_of(only(tensors));
  const Reduction summed = reduction(piece.element, op_of(options.reduceOp));
  const int target = root_of("reduce", options.rootRank, options.rootTensor, getSize());
  shm::TransferPlan plan{.call = {.kind = CallKind::kReduce,
                                  .element = piece.element,
                                  .op = summed.op,
                                  .root = static_cast<std::int8_t>(target),
                                  .elements = piece.elements()},
                         .longest_bytes = piece.bytes};
  if (getRank() == target) {
    plan.reduced = {
        .reduction = summed, .own = piece.data, .data = piece.data, .bytes = piece.bytes};
  } else {
    plan.outgoing = {{.data = piece.data, .bytes = piece.bytes}};
  }
  return start("reduce", make_transfer(std::move(plan)), tensors, options.timeout);
}

ShmBackend::WorkPtr ShmBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const auto piece = piece_of(only(tensors));
  const int source = root_of("broadcast", options.rootRank, options.rootTensor, getSize());
  shm::TransferPlan plan{.call = {.kind = CallKind::kBroadcast,
                                  .element = piece.element,
                                  .root = static_cast<std::int8_t>(source),
                                  .elements = piece.elements()},
                         .longest_bytes = piece.bytes};
  if (getRank() == source) {
    plan.outgoing = {{.data = piece.data, .bytes = piece.bytes}};
  } else {
    plan.incoming = {{.data = piece.data, .bytes = piece.bytes, .peer = source}};
  }
  return start("broadcast", make_transfer(std::move(plan)), tensors, options.timeout);
}

ShmBackend::WorkPtr ShmBackend::start_all_gather(const std::vector<Piece>& outputs,
                                                 const Piece& input, Tensors tensors,
                                                 std::chrono::milliseconds timeout) {
  shm::TransferPlan plan{.call = {.kind = CallKind::kAllGather,
                                  .element = input.element,
                                  .elements = input.elements()},
                         .longest_bytes = input.bytes};
  plan.outgoing = {{.data = input.data, .bytes = input.bytes}};
  for (int rank = 0; rank < getSize(); ++rank) {
    const Piece& output = outputs[static_cast<std::size_t>(rank)];
    check_same_size(output, input);
    if (rank == getRank()) {
      plan.own = own_copy(output, input);
    } else {
      plan.incoming.push_back({.data = output.data, .bytes = output.bytes, .peer = rank});
    }
  }
  return start("all_gather", make_transfer(std::move(plan)), std::move(tensors), timeout);
}

ShmBackend::WorkPtr ShmBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) {
  const at::Tensor& input = only(inputs);
  if (outputs.size() != 1) throw UsageError("all_gather takes one list of outputs");
  check_count(outputs[0], getSize());
  Tensors tensors = outputs[0];
  tensors.push_back(input);
  return start_all_gather(pieces_of(outputs[0]), piece_of(input), std::move(tensors),
                          options.timeout);
}

ShmBackend::WorkPtr ShmBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::AllgatherOptions& options) {
  return start_all_gather(split_flat(output, getSize()), piece_of(input), {output, input},
                          options.timeout);
}

ShmBackend::WorkPtr ShmBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::GatherOptions& options) {
  const auto input = piece_of(only(inputs));
  const int target = root_of("gather", options.rootRank, 0, getSize());
  shm::TransferPlan plan{.call = {.kind = CallKind::kGather,
                                  .element = input.element,
                                  .root = static_cast<std::int8_t>(target),
                                  .elements = input.elements()},
                         .longest_bytes = input.bytes};
  Tensors tensors = inputs;
  if (getRank() == target) {
    if (outputs.size() != 1) throw UsageError("gather takes one list of outputs on its target");
    check_count(outputs[0], getSize());
    append(tensors, outputs[0]);
    for (int rank = 0; rank < getSize(); ++rank) {
      const auto output = piece_of(outputs[0][static_cast<std::size_t>(rank)]);
      check_same_size(output, input);
      if (rank == target) {
        plan.own = own_copy(output, input);
      } else {
        plan.incoming.push_back({.data = output.data, .bytes = output.bytes, .peer = rank});
      }
    }
  } else {
    if (!outputs.empty()) throw UsageError("gather takes outputs on its target alone");
    plan.outgoing = {{.data = input.data, .bytes = input.bytes}};
  }
  return start("gather", make_transfer(std::move(plan)), std::move(tensors), options.timeout);
}

ShmBackend::WorkPtr ShmBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ScatterOptions& options) {
  const auto output = piece_of(only(outputs));
  const int source = root_of("scatter", options.rootRank, 0, getSize());
  shm::TransferPlan plan{.call = {.kind = CallKind::kScatter,
                                  .element = output.element,
                                  .root = static_cast<std::int8_t>(source),
                                  .elements = output.elements()},
                         .parts = getSize(),
                         .longest_bytes = output.bytes};
  Tensors tensors = outputs;
  if (getRank() == source) {
    if (inputs.size() != 1) throw UsageError("scatter takes one list of inputs on its source");
    check_count(inputs[0], getSize());
    append(tensors, inputs[0]);
    for (int rank = 0; rank < getSize(); ++rank) {
      const auto input = piece_of(inputs[0][static_cast<std::size_t>(rank)]);
      check_same_size(input, output);
      if (rank == source) {
        plan.own = own_copy(output, input);
      } else {
        plan.outgoing.push_back({.data = input.data, .bytes = input.bytes, .part = rank});
      }
    }
  } else {
    if (!inputs.empty()) throw UsageError("scatter takes inputs on its source alone");
    plan.incoming = {
        {.data = output.data, .bytes = output.bytes, .peer = source, .part = getRank()}};
  }
  return start("scatter", make_transfer(std::move(plan)), std::move(tensors), options.timeout);
}

ShmBackend::WorkPtr ShmBackend::start_reduce_scatter(const Piece& output,
                                                     const std::vector<Piece>& inputs,
                                                     const c10d::ReduceOp& c10d_op, Tensors tensors,
                                                     std::chrono::milliseconds timeout) {
  const ReduceOp op = op_of(c10d_op);
  shm::TransferPlan plan{.call = {.kind = CallKind::kReduceScatter,
                                  .element = output.element,
                                  .op = op,
                                  .elements = output.elements()},
                         .parts = getSize(),
                         .longest_bytes = output.bytes};
  for (int rank = 0; rank < getSize(); ++rank) {
    const Piece& input = inputs[static_cast<std::size_t>(rank)];
    check_same_size(input, output);
    if (rank == getRank()) {
      plan.reduced = {.reduction = reduction(output.element, op),
                      .own = input.data,
                      .data = output.data,
                      .bytes = output.bytes,
                      .part = rank};
    } else {
      plan.outgoing.push_back({.data = input.data, .bytes = input.bytes, .part = rank});
    }
  }
  return start("reduce_scatter", make_transfer(std::move(plan)), std::move(tensors), timeout);
}

ShmBackend::WorkPtr ShmBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  const auto output = piece_of(only(outputs));
  if (inputs.size() != 1) throw UsageError("reduce_scatter takes one list of inputs");
  check_count(inputs[0], getSize());
  Tensors tensors = outputs;
  append(tensors, inputs[0]);
  return start_reduce_scatter(output, pieces_of(inputs[0]), options.reduceOp, std::move(tensors),
                              options.timeout);
}

ShmBackend::WorkPtr ShmBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  return start_reduce_scatter(piece_of(output), split_flat(input, getSize()), options.reduceOp,
                              {output, input}, options.timeout);
}

ShmBackend::WorkPtr ShmBackend::start_all_to_all(const std::vector<Piece>& outputs,
                                                 const std::vector<Piece>& inputs, Tensors tensors,
                                                 std::chrono::milliseconds timeout) {
  shm::TransferPlan plan{.call = {.kind = CallKind::kAllToAll, .element = inputs[0].element},
                         .parts = getSize(),
                         .sizes_differ = true};
  for (int rank = 0; rank < getSize(); ++rank) {
    const Piece& output = outputs[static_cast<std::size_t>(rank)];
    const Piece& input = inputs[static_cast<std::size_t>(rank)];
    if (output.element != plan.call.element || input.element != plan.call.element) {
      throw UsageError("all_to_all: tensors are of different dtypes");
    }
    if (rank == getRank()) {
      plan.own = own_copy(output, input);
      continue;
    }
    plan.outgoing.push_back({.data = input.data, .bytes = input.bytes, .part = rank});
    plan.incoming.push_back(
        {.data = output.data, .bytes = output.bytes, .peer = rank, .part = getRank()});
    plan.longest_bytes = std::max({plan.longest_bytes, output.bytes, input.bytes});
  }
  return start("all_to_all", make_transfer(std::move(plan)), std::move(tensors), timeout);
}

ShmBackend::WorkPtr ShmBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                         const c10d::AllToAllOptions& options) {
  check_count(outputs, getSize());
  check_count(inputs, getSize());
  Tensors tensors = outputs;
  append(tensors, inputs);
  return start_all_to_all(pieces_of(outputs), pieces_of(inputs), std::move(tensors),
                          options.timeout);
}

ShmBackend::WorkPtr ShmBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<std::int64_t>& output_splits,
                                              std::vector<std::int64_t>& input_splits,
                                              const c10d::AllToAllOptions& options) {
  return start_all_to_all(shm::split(output, output_splits, getSize()),
                          shm::split(input, input_splits, getSize()), {output, input},
                          options.timeout);
}

ShmBackend::WorkPtr ShmBackend::start_message(shm::Message::Direction direction, Tensors& tensors,
                                              int peer, int tag) {
  const char* const name = direction == shm::Message::Direction::kSend ? "send" : "recv";
  const auto piece = piece_of(only(tensors));
  if (peer < 0 || peer >= getSize() || peer == getRank()) {
    throw UsageError(concat(name, ": ", peer, " is not another rank of this group of ", getSize()));
  }
  auto task = std::make_shared<shm::TensorTask>(name, time_allowed(kNoTimeout));
  task->message = {
      .direction = direction, .peer = peer, .tag = tag, .data = piece.data, .bytes = piece.bytes};
  task->tensors = tensors;
  engine_->start(task);
  return c10::make_intrusive<shm::ShmWork>(
      c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(this), *engine_,
      std::move(task));
}

ShmBackend::WorkPtr ShmBackend::send(Tensors& tensors, int target, int tag) {
  return start_message(shm::Message::Direction::kSend, tensors, target, tag);
}

ShmBackend::WorkPtr ShmBackend::recv(Tensors& tensors, int source, int tag) {
  return start_message(shm::Message::Direction::kReceive, tensors, source, tag);
}

ShmBackend::WorkPtr ShmBackend::barrier(const c10d::BarrierOptions& options) {
  return start("barrier", shm::make_transfer({.call = {.kind = CallKind::kBarrier}}), {},
               options.timeout);
}

}  // namespace lockstep::inline internal
