#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/native_collectives.h"
#include "lockstep/ddp/hooks.h"

namespace lockstep {
namespace {

constexpr double kSteps = 255;

}  // namespace

QuantizeHook::QuantizeHook(const QuantizeOptions& options) : options_(options) {
  if (options_.chunk_elements >= 0) return;
  throw UsageError(concat("QuantizeHook: chunk_elements=", options_.chunk_elements,
                          " is negative; 0 takes a whole bucket"));
}

std::string QuantizeHook::describe() const {
  return concat("quantize in chunks of ", options_.chunk_elements);
}

std::function<void()> QuantizeHook::start(const ProcessGroup& group, const HookBucket& bucket) {
  const std::int64_t elements = bucket.buffer.numel();
  if (elements == 0) return [] {};
  const std::int64_t chunk =
      options_.chunk_elements == 0 ? elements : std::min(options_.chunk_elements, elements);
  const std::int64_t chunks = (elements + chunk - 1) / chunk;

  // The padding repeats the last element, so that it widens no chunk.
  at::Tensor values = bucket.buffer.to(at::kFloat);
  const at::Tensor last = values.narrow(0, elements - 1, 1);
  values = at::cat({values, last.expand({chunks * chunk - elements})}).view({chunks, chunk});
  const at::Tensor minimum = values.amin(1, /*keepdim=*/true);
  const at::Tensor step = (values.amax(1, /*keepdim=*/true) - minimum) / kSteps;
  const at::Tensor whole = (values - minimum) / step;
  // Where all elements are equal the step is 0, and what it is multiplied by does not matter.
  const at::Tensor quantized = whole.nan_to_num(0).round_().clamp_(0, kSteps).to(at::kByte);

  // Offsets and steps travel with the integers, as bytes: one message.
  const at::Tensor header = at::cat({minimum, step}, 1).contiguous().view(at::kByte).view({-1});
  const at::Tensor message = at::cat({header, quantized.view({-1})});
  const at::Tensor all = at::empty({group.world_size() * message.numel()}, message.options());
  const Work work = all_gather_uncompared(group, all, message, {.async_op = true});
  return [work, all, chunks, chunk, elements, header_bytes = header.numel(),
          message_bytes = message.numel(), ranks = group.world_size(), target = bucket.buffer] {
    work.wait();
    at::Tensor sum = at::zeros({chunks, chunk}, all.options().dtype(at::kFloat));
    for (int rank = 0; rank < ranks; ++rank) {
      const at::Tensor bytes = all.narrow(0, rank * message_bytes, message_bytes);
      // A copy: bytes of any rank but the first may lie unaligned.
      const at::Tensor offset_and_step =
          bytes.narrow(0, 0, header_bytes).clone().view(at::kFloat).view({chunks, 2});
      const at::Tensor integers =
          bytes.narrow(0, header_bytes, chunks * chunk).view({chunks, chunk}).to(at::kFloat);
      sum.add_(integers * offset_and_step.narrow(1, 1, 1) + offset_and_step.narrow(1, 0, 1));
    }
    target.copy_(sum.view({-1}).narrow(0, 0, elements).div_(ranks));
  };
}

}  // namespace lockstep
