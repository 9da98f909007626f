#pragma once

#include <functional>

#include "lockstep/train/accelerator.h"

namespace lockstep::inline internal {

/// Runs `write` on rank 0; when it returns on any rank, `write` has ended. If rank 0 fails
/// meanwhile, a survivor runs it again, so `write` must check whether rank 0 has already written.
/// Collective, with two barriers if ranks can be replaced.
/// `gather`: runs before it on all ranks, as often: collectives for what is written.
/// Errors: what `write` throws, on the rank that ran it.
void write_on_main(
    Accelerator& accelerator, const std::function<void()>& write,
    const std::function<void()>& gather = [] {});

}  // namespace lockstep::inline internal
