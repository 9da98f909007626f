#pragma once

namespace lockstep::inline internal {

/// Each rank of `lockstep test`: checks collectives with known results, and a training run against that
/// of one process; rank 0 prints what passed. Collective. Errors: Error naming what is wrong, on
/// which rank and backend; as init_process_group and Work::wait.
void check_this_rank();

}  // namespace lockstep::inline internal
