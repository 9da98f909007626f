#if defined(__x86_64__)

#include "lockstep/comm/kernels/kernel_copy.h"
#include "lockstep/comm/kernels/kernel_reduce.h"
#include "lockstep/comm/kernels/kernel_squares.h"
#include "lockstep/comm/kernels/kernel_table.h"

namespace lockstep::inline internal {

const KernelTable kAvx2Kernels = {find_reduce, find_squares, copy_non_temporal};

}  // namespace lockstep::inline internal

#endif
