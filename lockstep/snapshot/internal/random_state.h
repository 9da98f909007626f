#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// The state of a device's default random generator (torch.get_rng_state, torch.cuda.get_rng_state)
/// as a uint8 tensor on the CPU.
at::Tensor random_state(c10::Device device);

/// Errors: UsageError when `state` is no state of such a generator.
void set_random_state(c10::Device device, const at::Tensor& state);

/// Throws what set_random_state would for a size or dtype that is wrong, and changes nothing.
void check_random_state(c10::Device device, const at::Tensor& state);

}  // namespace lockstep::inline internal
