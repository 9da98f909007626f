#pragma once

#include <cstdint>

/// Loops that do little but move memory: the limits of optimizers and steps. Compiled with -O3 in
/// every preset.
namespace lockstep::bench {

void add_to(float* __restrict sum, const float* __restrict gradient, std::int64_t elements);

/// The memory traffic of an optimizer with one state or two: reads the gradient, reads and writes
/// the rest.
void touch(float* __restrict parameter, const float* __restrict gradient, float* __restrict state,
           std::int64_t elements);
void touch(float* __restrict parameter, const float* __restrict gradient, float* __restrict first,
           float* __restrict second, std::int64_t elements);

}  // namespace lockstep::bench
