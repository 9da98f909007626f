#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/nn/internal/layer_group.h"

/// Collectives of a batch normalization layer, one per call. The ranks' values are combined along
/// one aligned binary tree over ranks, with every backend. If ranks are in different layers or pass
/// mismatching inputs, every rank gets a UsageError.
namespace lockstep::inline internal {

/// A batch normalization layer over several ranks. Constant.
struct SyncLayer {
  std::shared_ptr<LayerGroup> layers;
  std::uint64_t number = 0;  ///< identifies the layer; the same on every rank
  std::string name;          ///< for error messages
};

/// What backward will do on this rank; ranks compare it in forward, where an error is still
/// possible.
enum class BatchNormBackward { kNone = 0, kParametersOnly = 1, kExchanges = 2 };

/// Statistics over the batches of all ranks; [C] each, the same bits on every rank.
struct BatchStatistics {
  double count = 0;                 ///< values per channel
  bool backward_exchanges = false;  ///< whether backward communicates on any rank
  at::Tensor mean;                  ///< dtype: calculation_dtype(input)
  at::Tensor variance;              ///< biased; normalizes the batch; dtype as mean
  at::Tensor unbiased_variance;     ///< float64; updates running_var
};

/// The dtype in which batch_norm computes: float64 for float64, else float32.
at::ScalarType calculation_dtype(const at::Tensor& input);

/// Gathers the statistics of this rank's `input`, [N, C, …], where N may be 0.
/// Errors: UsageError on every rank as above, for an input with another number of channels, and for
/// fewer than 2 values per channel over all ranks; else as Work::wait.
BatchStatistics gather_batch_statistics(const SyncLayer& layer, const at::Tensor& input,
                                        std::int64_t channels, BatchNormBackward backward);

/// The sum of `values` over ranks, computed in float64.
/// Errors: as gather_batch_statistics.
at::Tensor sum_over_ranks(const SyncLayer& layer, const at::Tensor& values);

}  // namespace lockstep::inline internal
