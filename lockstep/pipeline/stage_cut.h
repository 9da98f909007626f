#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// The stages of a net: the layers up to the first cut, and so on. They share the net's layers and
/// their names, so that a stage's state dict is a part of the net's.
/// Errors: UsageError for cuts that do not rise or lie outside of the net, and for a parameter or
/// buffer that two stages share: two ranks would train it apart.
std::vector<torch::nn::Sequential> cut_into_stages(const torch::nn::Sequential& net,
                                                   const std::vector<std::int64_t>& cuts);

/// The number of parameters of each layer: what balance_stages takes.
std::vector<double> parameter_costs(const torch::nn::Sequential& net);

struct MeasureOptions {
  /// Rank 0 measures, all have its figures. Empty: this process measures for itself.
  ProcessGroup process_group = {};
  int repetitions = 5;  ///< After one that does not count; the fastest does.
};

/// The seconds of a forward and a backward pass of each layer: what balance_stages takes. `sample`
/// is a batch as one micro-batch will be, on the net's device; only rank 0 needs it. Parameters,
/// their gradients, buffers and the CPU's random numbers are as before. Collective with a group.
/// Errors: UsageError for no repetition; else as Work::wait, and what the layers throw.
std::vector<double> measured_costs(const torch::nn::Sequential& net, const at::Tensor& sample,
                                   const MeasureOptions& options = {});

}  // namespace lockstep
