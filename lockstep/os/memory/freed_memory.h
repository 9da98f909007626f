#pragma once

namespace lockstep::inline internal {

/// From now on the C library keeps what this process frees for its next allocations, instead of
/// handing it back to the system, which would clear it page by page when the next step wants it:
/// all blocks below 32 MB, without limit in sum (mallopt(3): M_TRIM_THRESHOLD, M_MMAP_THRESHOLD).
/// Returns false and changes nothing where the environment tells malloc what to do (MALLOC_…_,
/// GLIBC_TUNABLES); false too where the allocator cannot be told. Threads: any.
bool keep_freed_memory();

/// Hands what is kept so far back to the system. Threads: any.
void release_freed_memory();

}  // namespace lockstep::inline internal
