#pragma once

namespace lockstep::inline internal {

/// Whether all shared libraries that are loaded are the C++ compiler's, LibTorch's for CPUs, or
/// those that Lockstep links. They have no state that outlives their process.
bool has_only_runtime_libraries();

/// Whether all are of the system's folders, LibTorch or CUDA. They read no variable that tells
/// workers apart.
bool has_only_system_libraries();

}  // namespace lockstep::inline internal
