#pragma once

#include <optional>
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
  /// Replaces the module's buffers, for a module that stands for one of another language.
  void set_buffers(const std::vector<NamedTensor>& buffers);
  /// Like buffers(), without names, for each step: the buffers that the module had at construction,
  /// or of set_buffers().
  const std::vector<at::Tensor>& buffer_tensors() const { return buffer_tensors_; }

 private:
  bool is_ignored(const std::string& name) const;

  const torch::nn::Module& module_;
  std::vector<std::string> ignored_;
  std::optional<std::vector<NamedTensor>> buffers_;  // of set_buffers()
  std::vector<at::Tensor> buffer_tensors_;
};

}  // namespace lockstep::inline internal
