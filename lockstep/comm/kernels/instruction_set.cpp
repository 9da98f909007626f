#include "lockstep/comm/kernels/instruction_set.h"

#include <array>

namespace lockstep::inline internal {

bool is_supported(InstructionSet set) {
  switch (set) {
    case InstructionSet::kPortable:
      return true;
#if defined(__x86_64__)
    case InstructionSet::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
             __builtin_cpu_supports("fma");
    case InstructionSet::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    default:
      return false;
  }
}

InstructionSet best_instruction_set() {
  static const InstructionSet best = [] {
    if (is_supported(InstructionSet::kAvx512)) return InstructionSet::kAvx512;
    if (is_supported(InstructionSet::kAvx2)) return InstructionSet::kAvx2;
    return InstructionSet::kPortable;
  }();
  return best;
}

const char* instruction_set_name(InstructionSet set) {
  constexpr std::array kNames = {"portable", "AVX2", "AVX-512"};
  return kNames.at(static_cast<std::size_t>(set));
}

}  // namespace lockstep::inline internal
