#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/snapshot/state_dict.h"

namespace lockstep::inline internal {

/// Copies of tensors that a training step changes early, buffers and the program's own, to go back
/// to. Tensors above 16 MiB are copied only where LibTorch counts that they were changed.
class TensorCopies {
 public:
  void add(const at::Tensor& tensor) { copies_.push_back({.tensor = tensor}); }

  void remember();
  /// To the values of the last remember(); before the first nothing is changed.
  void go_back();

 private:
  struct Copy {
    at::Tensor tensor;
    at::Tensor value{};
    std::uint32_t version = 0;
  };
  std::vector<Copy> copies_;
};

/// The tensors by the same names, in memory of their own.
TensorDict copies_of(const TensorDict& tensors);

/// What a parameter's gradient is between steps: undefined (kNoGradient), dense (0), or sparse in
/// so many dimensions. An optimizer passes over a parameter whose gradient is undefined, and moves
/// it by its moments if the gradient is zeros.
constexpr std::int64_t kNoGradient = -1;
std::int64_t gradient_kind(const at::Tensor& parameter);
/// Zeros of that kind, or none.
void reset_gradient(const at::Tensor& parameter, std::int64_t kind);

}  // namespace lockstep::inline internal
