#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace lockstep::inline internal {

/// A copy of a training state in CPU memory that the next copy reuses, so that it costs no page
/// faults and no further memory.
class StateCopy {
 public:
  /// Copies the tree of a writable_value(); tensors with a single owner are not copied. Tensors
  /// that shared memory share it in the copy. The copy is valid until the next call.
  c10::IValue take(const c10::IValue& writable);

 private:
  /// One per storage, in the order of the tree, as bytes.
  std::vector<at::Tensor> buffers_;
};

}  // namespace lockstep::inline internal
