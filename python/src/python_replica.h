#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "lockstep/ddp/replica.h"

namespace lockstep::python {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// The C++ part of lockstep_torch.DistributedDataParallel: a Replica of a Python module, through a
/// C++ module that has the same parameters and buffers.
/// Threads: the training thread, without the GIL.
/// Lifetime: keeps the tensors and the group alive.
/// Errors: those of Replica; see rethrow_for_python.
class PythonReplica {
 public:
  /// `parameters` and `buffers`: with the dotted names that Python gives them.
  PythonReplica(const NamedTensors& parameters, const NamedTensors& buffers,
                const DistributedDataParallelOptions& options);

  /// The module has other buffers now. Outside of backward passes.
  void set_buffers(const NamedTensors& buffers);
  /// `training`: the Python module's mode.
  void before_forward(bool training);
  void after_forward() { replica_.after_forward(); }
  void add_outputs(const std::vector<at::Tensor>& outputs) { replica_.add_outputs(outputs); }

  void backward(const at::Tensor& loss, double weight, bool retain_graph);
  void forget_passes() { replica_.discard_passes(); }
  double gradient_norm() const { return replica_.gradient_norm(); }
  void check_replicas_agree() const { replica_.check_replicas_agree(nullptr); }

  /// Calls nest.
  void begin_no_sync() { no_sync_.push_back(std::make_unique<NoSyncGuard>(replica_)); }
  void end_no_sync() { no_sync_.pop_back(); }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  Replica replica_;
  std::vector<std::unique_ptr<NoSyncGuard>> no_sync_;
};

}  // namespace lockstep::python
