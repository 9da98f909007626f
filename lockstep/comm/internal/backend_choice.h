#pragma once

#include <string>
#include <vector>

#include "lockstep/base/internal/deadline.h"

namespace c10d {
class Store;
}

namespace lockstep::inline internal {

/// For each rank of a job, or of a group, the number of the first rank that it can share memory
/// with: itself where it is the first of its machine (or container).
using MemoryDomains = std::vector<int>;

/// More ranks of one machine than these cannot share memory.
inline constexpr int kMostShmRanks = 64;

/// The same in processes that can share memory; LOCKSTEP_MEMORY_DOMAIN has a say.
std::string own_memory_domain();

/// Tells the other ranks, through the job's or group's store, which memory this one can share.
/// Before joining.
void publish_memory_domain(c10d::Store& store, int rank);

/// What all ranks have published. After joining.
MemoryDomains read_memory_domains(c10d::Store& store, int world_size);

/// Both, for ranks that have not met in between. Errors: TimeoutError naming the ranks that did not
/// come.
MemoryDomains exchange_memory_domains(c10d::Store& store, int rank, int world_size,
                                      const Deadline& deadline);

/// The domains of a group of some of the ranks, numbered as the group numbers them.
MemoryDomains domains_of(const MemoryDomains& all, const std::vector<int>& ranks);

/// The backend for ranks without CUDA devices when the user names none: shm where all share memory,
/// hierarchical where some do, else gloo.
std::string choose_backend(const MemoryDomains& domains);

}  // namespace lockstep::inline internal
