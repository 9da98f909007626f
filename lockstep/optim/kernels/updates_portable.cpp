#include "lockstep/optim/kernels/update_kernels.h"
#include "lockstep/optim/kernels/update_loops.h"

namespace lockstep::inline internal {

const UpdateTable kPortableUpdates = {find_update};

}  // namespace lockstep::inline internal
