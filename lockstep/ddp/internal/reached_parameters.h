#pragma once

#include <cstddef>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::autograd {
struct Node;
}

namespace lockstep::inline internal {

/// Finds the parameters that some outputs depend on.
/// Threads: one at a time.
class ReachedParameters {
 public:
  /// accumulators[i]: autograd's node that accumulates the gradient of parameter i.
  explicit ReachedParameters(const std::vector<const torch::autograd::Node*>& accumulators);

  /// Adds those that a backward pass from `outputs` would reach.
  void add(const std::vector<at::Tensor>& outputs);
  void clear();

  /// Whether anything was added since clear().
  bool is_known() const { return is_known_; }
  bool contains(std::size_t parameter) const { return reached_[parameter]; }

 private:
  std::unordered_map<const torch::autograd::Node*, std::size_t> index_of_;
  std::vector<bool> reached_;
  bool is_known_ = false;
};

}  // namespace lockstep::inline internal
