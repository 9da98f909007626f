#pragma once

namespace lockstep::inline internal {

/// Whether each loaded shared library is the C++ compiler's, LibTorch's for CPUs, or one that
/// Lockstep links. The state of such a library ends with its process.
bool has_only_runtime_libraries();

/// Whether all are of the system's folders, LibTorch or CUDA. They read no variable that tells
/// workers apart.
bool has_only_system_libraries();

}  // namespace lockstep::inline internal
