#pragma once

#include <cstdint>

namespace lockstep::inline internal {

/// Which of the compiled variants of the kernels runs. All give the same bits.
enum class InstructionSet : std::uint8_t { kPortable, kAvx2, kAvx512 };

/// Whether this machine and this build support it.
bool is_supported(InstructionSet set);

/// The widest supported instruction set; detected once.
InstructionSet best_instruction_set();

/// "AVX-512"
const char* instruction_set_name(InstructionSet set);

}  // namespace lockstep::inline internal
