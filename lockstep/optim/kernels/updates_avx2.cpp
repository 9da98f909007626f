#if defined(__x86_64__)

#include "lockstep/optim/kernels/update_kernels.h"
#include "lockstep/optim/kernels/update_loops.h"

namespace lockstep::inline internal {

const UpdateTable kAvx2Updates = {find_update};

}  // namespace lockstep::inline internal

#endif
