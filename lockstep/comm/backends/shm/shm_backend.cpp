#include "lockstep/comm/backends/shm/shm_backend.h"

#include <algorithm>

#include <ATen/ops/from_blob.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/backends/shm/transfer.h"
#include "lockstep/comm/backends/task_work.h"

namespace lockstep::inline internal {

namespace {

// What is best to exchange at a time, measured on gradients that were just written: what two cores
// with one cache still hold of it, or enough to make up for the way between two caches.
constexpr std::int64_t kBucketBytesNear = 1 << 20;
constexpr std::int64_t kBucketBytesFar = 8 << 20;

using shm::Call;
using shm::CallKind;
using shm::check_count;
using shm::check_same_size;
using shm::Piece;
using shm::piece_of;
using shm::pieces_of;
using shm::split_flat;

// A task and the tensors it works on.
struct TensorTask final : shm::Task {
  TensorTask(const char* its_name, std::chrono::milliseconds its_timeout,
             std::vector<at::Tensor> its_tensors)
      : Task(its_name, its_timeout), tensors(std::move(its_tensors)) {}

  const std::vector<at::Tensor> tensors;
};
using ShmWork = TaskWork<shm::Engine, TensorTask>;

shm::OwnCopy own_copy(const Piece& target, const Piece& source) {
  return {.target = target.data,
          .source = source.data,
          .expected_bytes = target.bytes,
          .bytes = source.bytes};
}

// Of this rank, in the group's segment, which it keeps alive.
std::shared_ptr<MemoryHeap> heap_of(shm::Engine& engine) {
  const std::shared_ptr<shm::Segment>& segment = engine.team().segment();
  const int rank = engine.team().rank();
  const std::shared_ptr<const SharedMapping> memory(segment, &segment->map_heap(rank));
  return std::make_shared<MemoryHeap>(memory, segment->layout().heap(rank).begin);
}

void append(std::vector<at::Tensor>& all, const std::vector<at::Tensor>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

ShmBackend::ShmBackend(std::unique_ptr<shm::Engine> engine, std::chrono::milliseconds timeout)
    : Backend(engine->team().rank(), engine->team().ranks()),
      engine_(std::move(engine)),
      bucket_bytes_(engine_->team().store() == Store::kNonTemporal ? kBucketBytesFar
                                                                   : kBucketBytesNear),
      heap_(heap_of(*engine_)),
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
  return offset_of(tensor).has_value();
}

std::optional<std::uint64_t> ShmBackend::offset_of(const at::Tensor& tensor) const {
  if (!tensor.is_cpu() || !tensor.is_non_overlapping_and_dense()) return std::nullopt;
  return heap_->offset_of(tensor.const_data_ptr(), tensor.nbytes());
}

std::byte* ShmBackend::address_of(std::uint64_t offset, std::uint64_t bytes) {
  return engine_->team().heap_at(offset, bytes);
}

Reduction ShmBackend::reduction(Element element, ReduceOp op) const {
  shm::check_reduction(element, op);
  return {.element = element, .op = op, .factor = 1.0 / getSize()};
}

std::chrono::milliseconds ShmBackend::time_allowed(std::chrono::milliseconds timeout) const {
  return timeout > kNoTimeout ? timeout : timeout_;
}

NativeBackend::WorkPtr ShmBackend::start(const char* name,
                                         std::unique_ptr<shm::Operation> operation, Tensors tensors,
                                         const CallTerms& terms) {
  auto task = std::make_shared<TensorTask>(name, time_allowed(terms.timeout), std::move(tensors));
  if (!terms.name.empty()) operation->set_name(terms.name);
  task->operation = std::move(operation);
  engine_->start(task);
  return c10::make_intrusive<ShmWork>(*this, *engine_, std::move(task));
}

NativeBackend::WorkPtr ShmBackend::all_reduce_into(const Tensor& output, const Tensor& input,
                                                   const ScaledReduction& asked,
                                                   const CallTerms& terms) {
  const Piece target = piece_of(output);
  const Piece source = piece_of(input);
  const auto offset = heap_->offset_of(target.data, target.bytes);
  Call call{.kind = CallKind::kAllReduce,
            .element = target.element,
            .op = asked.op,
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
  if (asked.sum_of_squares.defined()) {
    buffers.sum_of_squares = asked.sum_of_squares.mutable_data_ptr<double>();
    tensors.push_back(asked.sum_of_squares);
  }
  Reduction scaled = reduction(target.element, asked.op);
  scaled.factor *= asked.scale;
  return start(name(call.kind), make_all_reduce(call, scaled, buffers), std::move(tensors), terms);
}

NativeBackend::WorkPtr ShmBackend::all_reduce(const Tensor& tensor, ReduceOp op,
                                              const CallTerms& terms) {
  const auto piece = piece_of(tensor);
  const Call call{.kind = CallKind::kAllReduce,
                  .element = piece.element,
                  .op = op,
                  .elements = piece.elements()};
  // A braced list would copy the tensor twice, each time with an atomic increment.
  return start(name(call.kind),
               make_all_reduce(call, reduction(piece.element, op),
                               {.input = piece.data,
                                .output = piece.data,
                                .shared_offset = heap_->offset_of(piece.data, piece.bytes)}),
               Tensors(1, tensor), terms);
}

NativeBackend::WorkPtr ShmBackend::reduce(const Tensor& tensor, int target, ReduceOp op,
                                          const CallTerms& terms) {
  const auto piece = piece_of(tensor);
  const Reduction summed = reduction(piece.element, op);
  shm::TransferPlan plan{.call = {.kind = CallKind::kReduce,
                                  .element = piece.element,
                                  .op = summed.op,
                                  .root = static_cast<std::int8_t>(target),
                                  .elements = piece.elements()},
                         .longest_bytes = piece.bytes};
  if (getRank() == target) {
    plan.reduced = {
        {.reduction = summed, .own = piece.data, .data = piece.data, .bytes = piece.bytes}};
  } else {
    plan.outgoing = {{.data = piece.data, .bytes = piece.bytes}};
  }
  return start("reduce", make_transfer(std::move(plan)), Tensors(1, tensor), terms);
}

NativeBackend::WorkPtr ShmBackend::broadcast(const Tensor& tensor, int source,
                                             const CallTerms& terms) {
  const auto piece = piece_of(tensor);
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
  return start("broadcast", make_transfer(std::move(plan)), Tensors(1, tensor), terms);
}

NativeBackend::WorkPtr ShmBackend::start_all_gather(const std::vector<Piece>& outputs,
                                                    const Piece& input, Tensors tensors,
                                                    const CallTerms& terms) {
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
  return start("all_gather", make_transfer(std::move(plan)), std::move(tensors), terms);
}

NativeBackend::WorkPtr ShmBackend::all_gather(const Tensors& outputs, const Tensor& input,
                                              const CallTerms& terms) {
  check_count(outputs, getSize());
  Tensors tensors = outputs;
  tensors.push_back(input);
  return start_all_gather(pieces_of(outputs), piece_of(input), std::move(tensors), terms);
}

NativeBackend::WorkPtr ShmBackend::all_gather_into_tensor(const Tensor& output, const Tensor& input,
                                                          const CallTerms& terms) {
  return start_all_gather(split_flat(output, getSize()), piece_of(input), {output, input}, terms);
}

NativeBackend::WorkPtr ShmBackend::gather(const Tensors& outputs, const Tensor& tensor, int target,
                                          const CallTerms& terms) {
  const auto input = piece_of(tensor);
  shm::TransferPlan plan{.call = {.kind = CallKind::kGather,
                                  .element = input.element,
                                  .root = static_cast<std::int8_t>(target),
                                  .elements = input.elements()},
                         .longest_bytes = input.bytes};
  Tensors tensors{tensor};
  if (getRank() == target) {
    check_count(outputs, getSize());
    append(tensors, outputs);
    for (int rank = 0; rank < getSize(); ++rank) {
      const auto output = piece_of(outputs[static_cast<std::size_t>(rank)]);
      check_same_size(output, input);
      if (rank == target) {
        plan.own = own_copy(output, input);
      } else {
        plan.incoming.push_back({.data = output.data, .bytes = output.bytes, .peer = rank});
      }
    }
  } else {
    plan.outgoing = {{.data = input.data, .bytes = input.bytes}};
  }
  return start("gather", make_transfer(std::move(plan)), std::move(tensors), terms);
}

NativeBackend::WorkPtr ShmBackend::scatter(const Tensor& tensor, const Tensors& inputs, int source,
                                           const CallTerms& terms) {
  const auto output = piece_of(tensor);
  shm::TransferPlan plan{.call = {.kind = CallKind::kScatter,
                                  .element = output.element,
                                  .root = static_cast<std::int8_t>(source),
                                  .elements = output.elements()},
                         .parts = getSize(),
                         .longest_bytes = output.bytes};
  Tensors tensors{tensor};
  if (getRank() == source) {
    check_count(inputs, getSize());
    append(tensors, inputs);
    for (int rank = 0; rank < getSize(); ++rank) {
      const auto input = piece_of(inputs[static_cast<std::size_t>(rank)]);
      check_same_size(input, output);
      if (rank == source) {
        plan.own = own_copy(output, input);
      } else {
        plan.outgoing.push_back({.data = input.data, .bytes = input.bytes, .part = rank});
      }
    }
  } else {
    plan.incoming = {
        {.data = output.data, .bytes = output.bytes, .peer = source, .part = getRank()}};
  }
  return start("scatter", make_transfer(std::move(plan)), std::move(tensors), terms);
}

NativeBackend::WorkPtr ShmBackend::start_reduce_scatter(const Piece& output,
                                                        const std::vector<Piece>& inputs,
                                                        ReduceOp op, Tensors tensors,
                                                        const CallTerms& terms) {
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
      plan.reduced = {{.reduction = reduction(output.element, op),
                       .own = input.data,
                       .data = output.data,
                       .bytes = output.bytes,
                       .part = rank}};
    } else {
      plan.outgoing.push_back({.data = input.data, .bytes = input.bytes, .part = rank});
    }
  }
  return start("reduce_scatter", make_transfer(std::move(plan)), std::move(tensors), terms);
}

NativeBackend::WorkPtr ShmBackend::reduce_scatter(const Tensor& output, const Tensors& inputs,
                                                  ReduceOp op, const CallTerms& terms) {
  const auto piece = piece_of(output);
  check_count(inputs, getSize());
  Tensors tensors{output};
  append(tensors, inputs);
  return start_reduce_scatter(piece, pieces_of(inputs), op, std::move(tensors), terms);
}

NativeBackend::WorkPtr ShmBackend::reduce_scatter_tensor(const Tensor& output, const Tensor& input,
                                                         ReduceOp op, const CallTerms& terms) {
  return start_reduce_scatter(piece_of(output), split_flat(input, getSize()), op, {output, input},
                              terms);
}

NativeBackend::WorkPtr ShmBackend::start_all_to_all(const std::vector<Piece>& outputs,
                                                    const std::vector<Piece>& inputs,
                                                    Tensors tensors, const CallTerms& terms) {
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
  return start("all_to_all", make_transfer(std::move(plan)), std::move(tensors), terms);
}

NativeBackend::WorkPtr ShmBackend::all_to_all(const Tensors& outputs, const Tensors& inputs,
                                              const CallTerms& terms) {
  check_count(outputs, getSize());
  check_count(inputs, getSize());
  Tensors tensors = outputs;
  append(tensors, inputs);
  return start_all_to_all(pieces_of(outputs), pieces_of(inputs), std::move(tensors), terms);
}

NativeBackend::WorkPtr ShmBackend::all_to_all_single(const Tensor& output, const Tensor& input,
                                                     const std::vector<std::int64_t>& output_splits,
                                                     const std::vector<std::int64_t>& input_splits,
                                                     const CallTerms& terms) {
  return start_all_to_all(shm::split(output, output_splits, getSize()),
                          shm::split(input, input_splits, getSize()), {output, input}, terms);
}

NativeBackend::WorkPtr ShmBackend::start_message(shm::Message::Direction direction,
                                                 const Tensor& tensor, int peer, int tag,
                                                 const CallTerms& terms) {
  const char* const name = direction == shm::Message::Direction::kSend ? "send" : "recv";
  const auto piece = piece_of(tensor);
  const bool is_peer = peer >= 0 && peer < getSize() && peer != getRank();
  const bool from_any = peer == shm::Message::kAnyPeer &&
                        direction == shm::Message::Direction::kReceive && getSize() > 1;
  if (!is_peer && !from_any) {
    throw UsageError(concat(name, ": ", peer, " is not another rank of this group of ", getSize()));
  }
  auto task = std::make_shared<TensorTask>(name, time_allowed(terms.timeout), Tensors(1, tensor));
  task->message = {
      .direction = direction, .peer = peer, .tag = tag, .data = piece.data, .bytes = piece.bytes};
  task->deadline_from_wait = terms.deadline_from_wait;
  engine_->start(task);
  return c10::make_intrusive<ShmWork>(*this, *engine_, std::move(task));
}

NativeBackend::WorkPtr ShmBackend::send(const Tensor& tensor, int target, int tag,
                                        const CallTerms& terms) {
  return start_message(shm::Message::Direction::kSend, tensor, target, tag, terms);
}

NativeBackend::WorkPtr ShmBackend::recv(const Tensor& tensor, int source, int tag,
                                        const CallTerms& terms) {
  if (source == shm::Message::kAnyPeer) {
    throw UsageError(concat("recv: -1 is not another rank of this group of ", getSize()));
  }
  return start_message(shm::Message::Direction::kReceive, tensor, source, tag, terms);
}

NativeBackend::WorkPtr ShmBackend::recv_from_any(const Tensor& tensor, int tag,
                                                 const CallTerms& terms) {
  return start_message(shm::Message::Direction::kReceive, tensor, shm::Message::kAnyPeer, tag,
                       terms);
}

NativeBackend::WorkPtr ShmBackend::barrier(const CallTerms& terms) {
  return start("barrier", shm::make_transfer({.call = {.kind = CallKind::kBarrier}}), {}, terms);
}

}  // namespace lockstep::inline internal
