#pragma once

#include <functional>

#include "lockstep/train/accelerator.h"

namespace lockstep::inline internal {

/// Runs `write` on rank 0. When it returns on any rank, `write` has ended. If rank 0 fails
/// meanwhile, a survivor runs it again: `write` looks whether rank 0 had written. Collective, with
/// two barriers where ranks can be replaced.
/// Errors: what `write` throws, on the rank that ran it.
void write_on_main(Accelerator& accelerator, const std::function<void()>& write);

}  // namespace lockstep::inline internal
