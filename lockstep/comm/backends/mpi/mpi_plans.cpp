#include "lockstep/comm/backends/mpi/mpi_plans.h"

#include <ATen/ops/empty_like.h>

#include "lockstep/comm/backends/mpi/rank_order_reduction.h"

namespace lockstep::mpi {
namespace {

using Tensors = std::vector<at::Tensor>;
using Requests = std::vector<MPI_Request>;

Segment segment_of(const at::Tensor& tensor, int peer) {
  return {.peer = peer,
          .data = static_cast<std::byte*>(tensor.mutable_data_ptr()),
          .bytes = tensor.nbytes()};
}

// One step in which inputs[r] goes to rank r and outputs[r] comes from it.
void exchange(const Communicator& communicator, const Tensors& outputs, const Tensors& inputs,
              int tag, Requests& requests) {
  const int size = communicator.size();
  for (int distance = 1; distance < size; ++distance) {
    const int source = (communicator.rank() + size - distance) % size;
    if (outputs[source].defined()) {
      communicator.receive(segment_of(outputs[source], source), tag, requests);
    }
  }
  for (int distance = 1; distance < size; ++distance) {
    const int target = (communicator.rank() + distance) % size;
    if (inputs[target].defined()) {
      communicator.send(segment_of(inputs[target], target), tag, requests);
    }
  }
}

// One part a rank, of sizes that differ by at most one element.
Tensors split(const at::Tensor& tensor, int world_size) {
  const at::Tensor flat = tensor.view({-1});
  Tensors parts;
  std::int64_t first = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    const std::int64_t last = flat.numel() * (rank + 1) / world_size;
    parts.push_back(flat.narrow(0, first, last - first));
    first = last;
  }
  return parts;
}

// What comes from the other ranks to be reduced with `own`, at its place.
Tensors scratch_beside(const at::Tensor& own, const Communicator& communicator) {
  Tensors parts(static_cast<std::size_t>(communicator.size()));
  for (int rank = 0; rank < communicator.size(); ++rank) {
    parts[rank] = rank == communicator.rank() ? own : at::empty_like(own);
  }
  return parts;
}

Tensors one_for_each(const at::Tensor& tensor, const Communicator& communicator) {
  return Tensors(static_cast<std::size_t>(communicator.size()), tensor);
}

// For one rank alone, nothing for the others.
Tensors for_one(const at::Tensor& tensor, int rank, const Communicator& communicator) {
  Tensors tensors(static_cast<std::size_t>(communicator.size()));
  tensors[rank] = tensor;
  return tensors;
}

// Up to this size two trips cost more than sending everything to everyone.
constexpr std::size_t kOneTripBytes = 16 * 1024;

// Every rank reduces its part of what all have: after it inputs[r] of all ranks are reduced on rank
// r. Two steps: the exchange and the computation.
MpiWork::Plan reduce_parts(Communicator& communicator, const at::Tensor& output,
                           const Tensors& inputs, const c10d::ReduceOp& op) {
  const Tensors received = scratch_beside(inputs[communicator.rank()], communicator);
  MpiWork::Plan plan;
  plan.tensors = received;
  plan.tensors.insert(plan.tensors.end(), inputs.begin(), inputs.end());
  plan.tensors.push_back(output);
  const int tag = communicator.next_step_tag();
  plan.steps.push_back([=](const Communicator& ranks, Requests& requests) {
    exchange(ranks, received, inputs, tag, requests);
  });
  plan.steps.push_back(
      [=](const Communicator&, Requests&) { reduce_in_order(received, op, output); });
  return plan;
}

void add_exchange(MpiWork::Plan& plan, Communicator& communicator, const Tensors& outputs,
                  const Tensors& inputs) {
  const int tag = communicator.next_step_tag();
  plan.steps.push_back([=](const Communicator& ranks, Requests& requests) {
    exchange(ranks, outputs, inputs, tag, requests);
  });
}

}  // namespace

MpiWork::Plan plan_broadcast(const at::Tensor& tensor, int source) {
  return {.steps = {[=](const Communicator& ranks, Requests& requests) {
            ranks.broadcast(segment_of(tensor, source), requests);
          }},
          .tensors = {tensor}};
}

MpiWork::Plan plan_barrier() {
  return {.steps = {[](const Communicator& ranks, Requests& requests) { ranks.barrier(requests); }},
          .tensors = {}};
}

MpiWork::Plan plan_exchange(Communicator& communicator, const Tensors& outputs,
                            const Tensors& inputs) {
  MpiWork::Plan plan;
  plan.tensors = inputs;
  plan.tensors.insert(plan.tensors.end(), outputs.begin(), outputs.end());
  const int self = communicator.rank();
  if (outputs[self].defined() && outputs[self].data_ptr() != inputs[self].data_ptr()) {
    plan.steps.push_back(
        [output = outputs[self], input = inputs[self]](const Communicator&, Requests&) {
          at::Tensor target = output;
          target.copy_(input.view(output.sizes()));
        });
  }
  add_exchange(plan, communicator, outputs, inputs);
  return plan;
}

MpiWork::Plan plan_all_reduce(Communicator& communicator, const at::Tensor& tensor,
                              const c10d::ReduceOp& op) {
  if (tensor.nbytes() <= kOneTripBytes) {
    return reduce_parts(communicator, tensor, one_for_each(tensor, communicator), op);
  }
  const Tensors parts = split(tensor, communicator.size());
  const at::Tensor& own = parts[communicator.rank()];
  MpiWork::Plan plan = reduce_parts(communicator, own, parts, op);
  add_exchange(plan, communicator, parts, one_for_each(own, communicator));
  return plan;
}

MpiWork::Plan plan_reduce_scatter(Communicator& communicator, const at::Tensor& output,
                                  const Tensors& inputs, const c10d::ReduceOp& op) {
  return reduce_parts(communicator, output, inputs, op);
}

MpiWork::Plan plan_reduce(Communicator& communicator, const at::Tensor& tensor, int target,
                          const c10d::ReduceOp& op) {
  const Tensors parts = split(tensor, communicator.size());
  const at::Tensor& own = parts[communicator.rank()];
  MpiWork::Plan plan = reduce_parts(communicator, own, parts, op);
  const bool is_target = communicator.rank() == target;
  add_exchange(plan, communicator, is_target ? parts : for_one({}, target, communicator),
               for_one(own, target, communicator));
  return plan;
}

MpiWork::Plan plan_send(const Communicator& communicator, const at::Tensor& tensor, int target,
                        int tag) {
  return {.steps = {[=, number = communicator.message_tag(tag)](const Communicator& ranks,
                                                                Requests& requests) {
            ranks.send(segment_of(tensor, target), number, requests);
          }},
          .tensors = {tensor}};
}

MpiWork::Plan plan_receive(const Communicator& communicator, const at::Tensor& tensor, int source,
                           int tag) {
  return {.steps = {[=, number = communicator.message_tag(tag)](const Communicator& ranks,
                                                                Requests& requests) {
            ranks.receive(segment_of(tensor, source), number, requests);
          }},
          .tensors = {tensor}};
}

}  // namespace lockstep::mpi
