#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// State of a device's default random generator (torch.get_rng_state, torch.cuda.get_rng_state), a
/// uint8 tensor on the CPU.
at::Tensor random_state(c10::Device device);

/// Sets it.
/// Errors: UsageError if `state` is no state of such a generator.
void set_random_state(c10::Device device, const at::Tensor& state);

/// Throws what set_random_state() would throw for a wrong size or dtype; changes nothing.
void check_random_state(c10::Device device, const at::Tensor& state);

}  // namespace lockstep::inline internal
