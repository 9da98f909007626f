#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/comm/backends/mpi/mpi_communicator.h"
#include "lockstep/comm/backends/mpi/mpi_work.h"

/// The steps of each collective. All tensors are dense; `parts` have one tensor for each rank.
/// Need the lock, since they take tags. Nothing is sent before the plan is started.
namespace lockstep::mpi {

MpiWork::Plan plan_broadcast(const at::Tensor& tensor, int source);
MpiWork::Plan plan_barrier();

/// inputs[r] goes to rank r, outputs[r] comes from it; an undefined tensor stands for nothing.
MpiWork::Plan plan_exchange(Communicator& communicator, const std::vector<at::Tensor>& outputs,
                            const std::vector<at::Tensor>& inputs);

/// The reduction over all ranks, on all of them.
MpiWork::Plan plan_all_reduce(Communicator& communicator, const at::Tensor& tensor,
                              const c10d::ReduceOp& op);

/// `output` becomes the reduction of all ranks' inputs[this rank]; inputs are left as they are.
MpiWork::Plan plan_reduce_scatter(Communicator& communicator, const at::Tensor& output,
                                  const std::vector<at::Tensor>& inputs, const c10d::ReduceOp& op);

/// The reduction on rank `target`; elsewhere the contents are undefined.
MpiWork::Plan plan_reduce(Communicator& communicator, const at::Tensor& tensor, int target,
                          const c10d::ReduceOp& op);

MpiWork::Plan plan_send(const Communicator& communicator, const at::Tensor& tensor, int target,
                        int tag);
MpiWork::Plan plan_receive(const Communicator& communicator, const at::Tensor& tensor, int source,
                           int tag);

}  // namespace lockstep::mpi
