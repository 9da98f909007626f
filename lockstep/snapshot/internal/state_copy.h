#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/snapshot/internal/gathered_state.h"

namespace lockstep::inline internal {

/// A training state as it was when StateCopy took it.
struct TakenState {
  c10::IValue tree = {};
  /// Reads the tensors that are absent in the tree, one after the other, once. Afterwards their
  /// memory is no longer frozen. Empty: no tensor is absent.
  /// Errors: as FrozenMemory.
  GatherWhole gather = {};
};

/// Takes training states, so that they can be written while training continues. Memory that can be
/// frozen (FreezableMemory) is not copied: its tensors are absent. Of the others the copy is in CPU
/// memory that the next copy reuses, so that it costs no page faults and no further memory.
class StateCopy {
 public:
  /// Takes the tree of a writable_value(); tensors with a single owner are not copied. Tensors that
  /// shared memory share it in the copy. The result is valid until the next call.
  TakenState take(const c10::IValue& writable);

 private:
  at::Tensor copy_of(const c10::Storage& storage);

  /// One per storage that is copied, in the order of the tree, as bytes.
  std::vector<at::Tensor> buffers_;
  std::size_t used_ = 0;
};

}  // namespace lockstep::inline internal
