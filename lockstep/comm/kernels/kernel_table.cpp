#include "lockstep/comm/kernels/kernel_table.h"

#include "lockstep/base/internal/check.h"

namespace lockstep::inline internal {

const KernelTable& kernel_table(InstructionSet set) {
  switch (set) {
#if defined(__x86_64__)
    case InstructionSet::kAvx512:
      return kAvx512Kernels;
    case InstructionSet::kAvx2:
      return kAvx2Kernels;
#endif
    default:
      LOCKSTEP_ASSERT(set == InstructionSet::kPortable);
      return kPortableKernels;
  }
}

}  // namespace lockstep::inline internal
