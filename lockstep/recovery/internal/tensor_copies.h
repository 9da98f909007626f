#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/snapshot/state_dict.h"

namespace lockstep::inline internal {

/// Copies of tensors that a training step changes early (buffers and the program's own), for
/// rolling back. Tensors above 16 MiB are copied only if LibTorch's version counter has changed.
class TensorCopies {
 public:
  void add(const at::Tensor& tensor) { copies_.push_back({.tensor = tensor}); }

  void remember();
  /// Restores the values of the last remember(); no effect before the first.
  void roll_back();

 private:
  struct Copy {
    at::Tensor tensor;
    at::Tensor value{};
    std::uint32_t version = 0;
  };
  std::vector<Copy> copies_;
};

/// Copies of the tensors, by the same names.
TensorDict copies_of(const TensorDict& tensors);

/// Kind of a parameter's gradient between steps: undefined (kNoGradient), dense (0), or sparse with
/// that many dimensions. An optimizer skips a parameter whose gradient is undefined, and updates it
/// by its moments if the gradient is zeros.
constexpr std::int64_t kNoGradient = -1;
std::int64_t gradient_kind(const at::Tensor& parameter);
/// Makes the gradient zeros of that kind, or undefined.
void reset_gradient(const at::Tensor& parameter, std::int64_t kind);

}  // namespace lockstep::inline internal
