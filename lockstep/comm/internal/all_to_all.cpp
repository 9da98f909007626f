#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/collective_call.h"
#include "lockstep/comm/internal/process_group_state.h"

namespace lockstep {
namespace {

std::int64_t rows(const at::Tensor& tensor) {
  return tensor.dim() == 0 ? 0 : tensor.size(0);
}

// The splits of all_to_all_single: empty stands for equal parts, else one count of rows per rank.
void check_splits(const CallSite& call, const char* argument, const at::Tensor& tensor,
                  const std::vector<std::int64_t>& splits) {
  const auto world_size = static_cast<std::size_t>(call.group.world_size);
  const std::int64_t sum = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  const bool negative = std::any_of(splits.begin(), splits.end(), [](auto n) { return n < 0; });
  const bool valid = splits.empty()
                         ? rows(tensor) % call.group.world_size == 0
                         : splits.size() == world_size && sum == rows(tensor) && !negative;
  if (!valid) {
    throw UsageError(concat(call.operation, " of group '", call.group.name, "' on rank ",
                            call.group.rank, ": ", argument, " must divide the ", rows(tensor),
                            " rows of the tensor among ", world_size, " ranks; it has ",
                            splits.size(), " entries that sum to ", sum));
  }
}

std::vector<std::int64_t> elements(const std::vector<at::Tensor>& tensors) {
  std::vector<std::int64_t> counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(tensor.numel());
  return counts;
}

std::vector<std::int64_t> elements(const at::Tensor& tensor,
                                   const std::vector<std::int64_t>& splits, int world_size) {
  if (splits.empty()) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(world_size),
                                     tensor.numel() / world_size);
  }
  const std::int64_t row = rows(tensor) == 0 ? 0 : tensor.numel() / rows(tensor);
  std::vector<std::int64_t> counts;
  for (const std::int64_t split : splits) counts.push_back(split * row);
  return counts;
}

}  // namespace

Work ProcessGroup::all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                              const CollectiveOptions& options) const {
  const CallSite call{"all_to_all", state("all_to_all")};
  const auto world_size = static_cast<std::size_t>(call.group.world_size);
  if (outputs.size() != world_size || inputs.size() != world_size) {
    throw UsageError(concat("all_to_all of group '", call.group.name, "' on rank ", call.group.rank,
                            ": ", outputs.size(), " outputs and ", inputs.size(),
                            " inputs given, one of each for each of ", world_size,
                            " ranks is needed"));
  }
  for (const at::Tensor& output : outputs) {
    check_tensor(call, "a tensor of outputs", output);
    check_same_dtype(call, output, outputs[0]);
  }
  for (const at::Tensor& input : inputs) {
    check_tensor(call, "a tensor of inputs", input);
    check_same_dtype(call, outputs[0], input);
  }
  if (!call.group.backend) outputs[0].copy_(inputs[0].view(outputs[0].sizes()));
  return start_exchange(
      call, CallSignature(call.operation).of(inputs[0].scalar_type()),
      {.sent = elements(inputs), .received = elements(outputs)}, options,
      [&](auto& backend, auto& terms) { return backend.all_to_all(outputs, inputs, terms); });
}

Work ProcessGroup::all_to_all_single(at::Tensor output, at::Tensor input,
                                     std::vector<std::int64_t> output_splits,
                                     std::vector<std::int64_t> input_splits,
                                     const CollectiveOptions& options) const {
  const CallSite call{"all_to_all_single", state("all_to_all_single")};
  check_tensor(call, "output", output);
  check_tensor(call, "input", input);
  check_same_dtype(call, output, input);
  check_splits(call, "output_splits", output, output_splits);
  check_splits(call, "input_splits", input, input_splits);
  if (!call.group.backend) output.copy_(input.view(output.sizes()));
  const int world_size = call.group.world_size;
  return start_exchange(call, CallSignature(call.operation).of(input.scalar_type()),
                        {.sent = elements(input, input_splits, world_size),
                         .received = elements(output, output_splits, world_size)},
                        options, [&](auto& backend, auto& terms) {
                          return backend.all_to_all_single(output, input, output_splits,
                                                           input_splits, terms);
                        });
}

}  // namespace lockstep
