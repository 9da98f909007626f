#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/optim/internal/optimizer_fields.h"
#include "lockstep/optim/internal/update_range.h"

namespace lockstep::inline internal {

/// Tensors of one device, dtype and step for one call of an ATen fused kernel.
struct FusedBatch {
  at::Device device;
  at::ScalarType dtype;
  std::int64_t step;  ///< of SGD: 1 where the momentum is still to be made
  std::vector<at::Tensor> parameters = {}, gradients = {}, steps = {};
  std::array<std::vector<at::Tensor>, kMostStates> states = {};
};

void run_fused(const FusedBatch& batch, const SGDOptions& options);
void run_fused(const FusedBatch& batch, const AdamOptions& options);
void run_fused(const FusedBatch& batch, const AdamWOptions& options);
void run_fused(const FusedBatch& batch, const AdagradOptions& options);

}  // namespace lockstep::inline internal
