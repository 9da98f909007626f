#pragma once

#include <cstddef>

#include "lockstep/comm/kernels/element.h"
#include "lockstep/comm/kernels/instruction_set.h"
#include "lockstep/comm/kernels/store.h"

/// Copies, with a choice of store; see reduce_kernel.h. Threads: any.
namespace lockstep {

/// As memcpy.
void copy(std::byte* target, const std::byte* source, std::size_t bytes,
          Store store = Store::kOrdinary, InstructionSet set = best_instruction_set());

/// What converts between elements or scales them while it copies.
struct Conversion {
  Element source;
  Element target;
  double factor = 1;  ///< rounded to float32 unless the elements are float64
};

/// target[i] = source[i] * factor, rounded once: floating-point elements, that are the same, or one
/// of which is float32 and the other float16 or bfloat16. In place where they are the same.
void convert(const Conversion& conversion, std::byte* target, const std::byte* source,
             std::size_t elements, Store store = Store::kOrdinary,
             InstructionSet set = best_instruction_set());

}  // namespace lockstep
