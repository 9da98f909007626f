#pragma once

namespace lockstep::inline internal {

/// What each rank of `lockstep test` does: collectives whose results are known, and a training that
/// must end as that of one process; rank 0 says on standard output what went well. Collective.
/// Errors: Error naming what is wrong, on which rank and backend; as init_process_group and
/// Work::wait.
void check_this_rank();

}  // namespace lockstep::inline internal
