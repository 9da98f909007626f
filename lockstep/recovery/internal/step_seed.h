#pragma once

#include <cstdint>

#include <c10/core/Device.h>

namespace lockstep::inline internal {

/// Seeds the default generators of the CPU and of `device` for a step of a rank, so that a step
/// draws the same random numbers in any process.
void seed_step(std::uint64_t seed, int rank, std::int64_t step, c10::Device device);

}  // namespace lockstep::inline internal
