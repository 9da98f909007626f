#pragma once

#include <ATen/core/ivalue.h>

namespace lockstep::inline internal {

/// The dict of the weights in what torch.save wrote, found as weights_path() finds it in
/// checkpoints of torch.distributed; the tree itself where all its tensors are weights.
c10::IValue weights_value(const c10::IValue& tree);

}  // namespace lockstep::inline internal
