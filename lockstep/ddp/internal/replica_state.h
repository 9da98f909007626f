#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/ddp/replica_check.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline internal {

/// The tensors of a module that replicas share: each once, by the first of its names, without
/// ignored ones.
/// Threads: one at a time.
/// Lifetime: refers to the module.
class ReplicaState {
 public:
  /// `ignored`: names of parameters and buffers to leave out.
  /// Errors: UsageError for a name that is neither.
  ReplicaState(const torch::nn::Module& module, std::vector<std::string> ignored);

  std::vector<NamedTensor> parameters() const;
  std::vector<NamedTensor> buffers() const;
  /// Like buffers(), without names, for each step: those that the module had at construction.
  const std::vector<at::Tensor>& buffer_tensors() const { return buffer_tensors_; }

 private:
  bool is_ignored(const std::string& name) const;

  const torch::nn::Module& module_;
  std::vector<std::string> ignored_;
  std::vector<at::Tensor> buffer_tensors_;
};

}  // namespace lockstep::inline internal
