#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/comm/kernels/element.h"
#include "lockstep/comm/kernels/instruction_set.h"

/// Copies, with a choice of store; see reduce_kernel.h.
/// Threads: any.
namespace lockstep::inline internal {

/// Whether stores go through the caches or bypass them. Bypassing is faster for lines that are not
/// in the core's own cache and that another core will read.
enum class Store : std::uint8_t { kOrdinary, kNonTemporal };

/// Like memcpy.
void copy(std::byte* target, const std::byte* source, std::size_t bytes,
          Store store = Store::kOrdinary, InstructionSet set = best_instruction_set());

}  // namespace lockstep::inline internal
