#include "lockstep/nn/internal/batch_norm_exchange.h"

#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/nn/internal/channel_statistics.h"

namespace lockstep::inline internal {
namespace {

std::int64_t values_per_channel(const at::Tensor& input) {
  std::int64_t count = input.size(0);
  for (std::int64_t dim = 2; dim < input.dim(); ++dim) count *= input.size(dim);
  return count;
}

std::string place(const SyncLayer& layer) {
  return concat("SyncBatchNorm '", layer.name, "' on rank ", layer.layers->group.rank());
}

// Runs an exchange. Ranks that call another one are elsewhere in their program.
template <class Exchange>
void exchange(const SyncLayer& layer, Exchange&& action) {
  try {
    action(layer.layers->group);
  } catch (const UsageError& error) {
    throw UsageError(
        concat(place(layer),
               ": ranks differ in the module, the pass or the number of channels: ", error.what()));
  }
}

// A message is this, then the means of all channels, then their sums of squared deviations.
enum Header { kLayer, kChannels, kCount, kBackward, kHeaderSize };

at::Tensor own_message(const SyncLayer& layer, const at::Tensor& input, std::int64_t channels,
                       BatchNormBackward backward) {
  at::Tensor message = at::zeros({kHeaderSize + 2 * channels}, at::kDouble);
  auto* header = message.mutable_data_ptr<double>();
  const std::int64_t count = values_per_channel(input);
  header[kLayer] = static_cast<double>(layer.number);
  header[kChannels] = static_cast<double>(input.size(1));
  header[kCount] = static_cast<double>(count);
  header[kBackward] = static_cast<double>(backward);
  if (count == 0 || input.size(1) != channels) return message;
  // The running statistics given here are not used, but tell the dtype to calculate in.
  const auto options = input.options().dtype(calculation_dtype(input));
  const auto [mean, variance] = at::batch_norm_update_stats(
      input, at::zeros({channels}, options), at::zeros({channels}, options), /*momentum=*/0);
  message.narrow(0, kHeaderSize, channels).copy_(mean);
  message.narrow(0, kHeaderSize + channels, channels)
      .copy_(variance.to(at::kDouble).mul_(static_cast<double>(count)));
  return message;
}

BatchNormBackward backward_in(const double* header) {
  return static_cast<BatchNormBackward>(static_cast<int>(header[kBackward]));
}

void check_headers(const SyncLayer& layer, const double* messages, std::int64_t stride,
                   std::int64_t channels) {
  const int world_size = layer.layers->group.world_size();
  double count = 0;
  bool exchanges = false;
  int without_backward = -1;
  for (int rank = 0; rank < world_size; ++rank) {
    const double* header = messages + rank * stride;
    if (header[kLayer] != static_cast<double>(layer.number)) {
      throw UsageError(concat(place(layer), ": rank ", rank, " runs SyncBatchNorm number ",
                              header[kLayer], ", this rank number ", layer.number,
                              "; run the same modules in the same order on all ranks"));
    }
    if (header[kChannels] != static_cast<double>(channels)) {
      throw UsageError(concat(place(layer), ": the input of rank ", rank, " has ",
                              header[kChannels], " channels, the module ", channels,
                              "; give it inputs of shape [N, ", channels, ", ...]"));
    }
    count += header[kCount];
    exchanges = exchanges || backward_in(header) == BatchNormBackward::kExchanges;
    if (backward_in(header) == BatchNormBackward::kNone) without_backward = rank;
  }
  if (count < 2) {
    throw UsageError(concat(place(layer), ": the batches of all ranks have ", count,
                            " values per channel together; training needs at least 2"));
  }
  if (exchanges && without_backward >= 0) {
    throw UsageError(concat(place(layer), ": rank ", without_backward,
                            " runs forward without gradients and would not join the exchange in "
                            "backward; use NoGradGuard on all ranks or on none"));
  }
}

// As combine_by_tree().
at::Tensor sum_by_tree(at::Tensor rows) {
  while (rows.size(0) > 1) {
    const std::int64_t even = rows.size(0) / 2 * 2;
    at::Tensor sums = rows.slice(0, 0, even, 2) + rows.slice(0, 1, even, 2);
    if (even < rows.size(0)) sums = at::cat({sums, rows.narrow(0, even, 1)});
    rows = sums;
  }
  return rows.select(0, 0);
}

}  // namespace

at::ScalarType calculation_dtype(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

BatchStatistics gather_batch_statistics(const SyncLayer& layer, const at::Tensor& input,
                                        std::int64_t channels, BatchNormBackward backward) {
  const ProcessGroup& group = layer.layers->group;
  const at::Tensor message = own_message(layer, input, channels, backward).to(group.device());
  const std::int64_t stride = message.numel();
  const at::Tensor on_device = at::empty({group.world_size() * stride}, message.options());
  exchange(layer,
           [&](const ProcessGroup& ranks) { ranks.all_gather_into_tensor(on_device, message); });
  const at::Tensor all = on_device.to(at::kCPU);
  const auto* messages = all.const_data_ptr<double>();
  check_headers(layer, messages, stride, channels);

  BatchStatistics result;
  at::Tensor values = at::empty({3, channels}, at::kDouble);
  auto* mean = values.mutable_data_ptr<double>();
  auto* variance = mean + channels;
  auto* unbiased_variance = variance + channels;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const double* header = messages + rank * stride;
    result.count += header[kCount];
    result.backward_exchanges =
        result.backward_exchanges || backward_in(header) == BatchNormBackward::kExchanges;
  }
  std::vector<ChannelStatistics> parts(static_cast<std::size_t>(group.world_size()));
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    for (int rank = 0; rank < group.world_size(); ++rank) {
      const double* header = messages + rank * stride;
      parts[static_cast<std::size_t>(rank)] = {.count = header[kCount],
                                               .mean = header[kHeaderSize + channel],
                                               .squares = header[kHeaderSize + channels + channel]};
    }
    const ChannelStatistics total = combine_by_tree(parts);
    mean[channel] = total.mean;
    variance[channel] = total.squares / total.count;
    unbiased_variance[channel] = total.squares / (total.count - 1);
  }
  values = values.to(input.device());
  result.mean = values[0].to(calculation_dtype(input));
  result.variance = values[1].to(calculation_dtype(input));
  result.unbiased_variance = values[2];
  return result;
}

// Sums `values` over ranks, in float64. The layer's number travels along. Backends all-reduce in
// orders of their own.
at::Tensor sum_over_ranks(const SyncLayer& layer, const at::Tensor& values) {
  const ProcessGroup& group = layer.layers->group;
  const std::int64_t numel = values.numel();
  const at::Tensor message = at::empty({numel + 1}, values.options().dtype(at::kDouble));
  message.narrow(0, 0, numel).copy_(values.reshape({-1}));
  message[numel].fill_(static_cast<double>(layer.number));
  const at::Tensor own = message.to(group.device());
  const at::Tensor rows = at::empty({group.world_size(), numel + 1}, own.options());
  exchange(layer,
           [&](const ProcessGroup& ranks) { ranks.all_gather_into_tensor(rows.view(-1), own); });
  const at::Tensor numbers = rows.select(1, numel).to(at::kCPU).contiguous();
  for (int rank = 0; rank < group.world_size(); ++rank) {
    if (numbers.const_data_ptr<double>()[rank] == static_cast<double>(layer.number)) continue;
    throw UsageError(concat(place(layer), ": rank ", rank,
                            " runs backward of a different SyncBatchNorm; build the same graph "
                            "on all ranks"));
  }
  const at::Tensor sum = sum_by_tree(rows.narrow(1, 0, numel));
  return sum.view(values.sizes()).to(values.device()).to(values.dtype());
}

}  // namespace lockstep::inline internal
