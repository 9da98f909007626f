#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/ddp/comm_hook.h"

namespace lockstep {

struct QuantizeOptions {
  /// How many elements share a scale and an offset; 0: all of a bucket. PyTorch's
  /// quantization_pertensor_hook has 0, its quantization_perchannel_hook 512.
  std::int64_t chunk_elements = 0;
};

/// Gradients travel as 8-bit integers, from each rank's smallest to its largest value: q of 0 to
/// 255 stands for minimum + q * (maximum - minimum) / 255. Every rank gathers those of all and
/// averages them in rank order, in float32. The error of an element is at most half a step of each
/// rank.
class QuantizeHook final : public CommHook {
 public:
  explicit QuantizeHook(const QuantizeOptions& options = {});

  std::string describe() const override;
  std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override;

 private:
  QuantizeOptions options_;
};

}  // namespace lockstep
