#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/nn/internal/layer_group.h"

/// What the ranks of a batch normalization layer tell each other, by one collective each. Where
/// they are in different layers, or pass what does not go together, every rank gets a UsageError.
namespace lockstep::inline internal {

/// One batch normalization layer over several ranks. Constant.
struct SyncLayer {
  std::shared_ptr<LayerGroup> layers;
  std::uint64_t number = 0;  ///< Tells layers apart; the same on every rank.
  std::string name;          ///< For messages.
};

/// What backward will do on this rank: ranks compare it in forward, where they still can.
enum class BatchNormBackward { kNone = 0, kParametersOnly = 1, kExchanges = 2 };

/// Of the batches of all ranks together; [C] each, the same bits on every rank.
struct BatchStatistics {
  double count = 0;                 ///< Values per channel.
  bool backward_exchanges = false;  ///< Some rank's does.
  at::Tensor mean;                  ///< Of calculation_dtype(input), as variance.
  at::Tensor variance;              ///< Biased: what the batch is normalized by.
  at::Tensor unbiased_variance;     ///< float64; what running_var takes in.
};

/// The dtype in which batch_norm calculates: float64 for float64, else float32.
at::ScalarType calculation_dtype(const at::Tensor& input);

/// From this rank's `input`, [N, C, …], of a layer with `channels` channels. N may be 0.
/// Errors: UsageError on every rank as above, for an input of another number of channels, and for
/// fewer than 2 values a channel in all; else as Work::wait.
BatchStatistics gather_batch_statistics(const SyncLayer& layer, const at::Tensor& input,
                                        std::int64_t channels, BatchNormBackward backward);

/// The sum of the ranks' `values`, worked out in float64. Errors: as above.
at::Tensor sum_over_ranks(const SyncLayer& layer, const at::Tensor& values);

}  // namespace lockstep::inline internal
