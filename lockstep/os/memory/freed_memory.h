#pragma once

namespace lockstep::inline internal {

/// From now on the C library keeps freed blocks below 32 MB for this process's next allocations,
/// without limit in total (mallopt(3): M_TRIM_THRESHOLD, M_MMAP_THRESHOLD). By default it returns
/// them to the system, which clears each page again for the next step.
/// Returns false and changes nothing if the environment configures malloc (MALLOC_…_,
/// GLIBC_TUNABLES), or if the allocator has no such setting.
/// Threads: any.
bool keep_freed_memory();

/// Returns the kept memory to the system.
/// Threads: any.
void release_freed_memory();

}  // namespace lockstep::inline internal
