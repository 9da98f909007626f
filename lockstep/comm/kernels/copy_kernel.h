#pragma once

#include <cstddef>

#include "lockstep/comm/kernels/element.h"
#include "lockstep/comm/kernels/instruction_set.h"
#include "lockstep/comm/kernels/store.h"

/// Copies, with a choice of store; see reduce_kernel.h. Threads: any.
namespace lockstep::inline internal {

/// As memcpy.
void copy(std::byte* target, const std::byte* source, std::size_t bytes,
          Store store = Store::kOrdinary, InstructionSet set = best_instruction_set());

}  // namespace lockstep::inline internal
