#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/comm/backends/mpi/mpi_communicator.h"
#include "lockstep/comm/backends/mpi/mpi_work.h"

/// The steps of each collective. All tensors are dense. Call with the lock of mpi_runtime.h held,
/// because plans take tags. Nothing is sent before the plan is started.
namespace lockstep::mpi {

MpiWork::Plan plan_broadcast(const at::Tensor& tensor, int source);
MpiWork::Plan plan_barrier();

/// Sends inputs[r] to rank r and receives outputs[r] from it; skips undefined tensors.
MpiWork::Plan plan_exchange(Communicator& communicator, const std::vector<at::Tensor>& outputs,
                            const std::vector<at::Tensor>& inputs);

/// Reduces over all ranks, on all ranks.
MpiWork::Plan plan_all_reduce(Communicator& communicator, const at::Tensor& tensor,
                              const c10d::ReduceOp& op);

/// Reduces all ranks' inputs[this rank] into `output`; leaves inputs unchanged.
MpiWork::Plan plan_reduce_scatter(Communicator& communicator, const at::Tensor& output,
                                  const std::vector<at::Tensor>& inputs, const c10d::ReduceOp& op);

/// Reduces on rank `target`; on other ranks the contents are undefined.
MpiWork::Plan plan_reduce(Communicator& communicator, const at::Tensor& tensor, int target,
                          const c10d::ReduceOp& op);

MpiWork::Plan plan_send(const Communicator& communicator, const at::Tensor& tensor, int target,
                        int tag);
MpiWork::Plan plan_receive(const Communicator& communicator, const at::Tensor& tensor, int source,
                           int tag);

}  // namespace lockstep::mpi
