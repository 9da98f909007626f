#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace lockstep::inline internal {

/// A copy of a training's state in CPU memory that is used again for the next copy, so that taking
/// one costs neither page faults nor more than its own size.
class StateCopy {
 public:
  /// The same tree of a writable_value(), over memory of its own wherever others hold the tensors'.
  /// Tensors that shared memory share it in the copy. It holds until the next call.
  c10::IValue take(const c10::IValue& writable);

 private:
  /// One a storage, in the order of the tree, as bytes.
  std::vector<at::Tensor> buffers_;
};

}  // namespace lockstep::inline internal
