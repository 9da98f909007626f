#pragma once

#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace lockstep {

/// For each rank of a job, or of a group, the number of the first rank that it can share memory
/// with: itself where it is the first of its machine (or container).
using MemoryDomains = std::vector<int>;

/// Tells the other ranks, through the job's store, which memory this one can share. Before joining.
void publish_memory_domain(c10d::Store& store, int rank);

/// What all ranks have published. After joining.
MemoryDomains read_memory_domains(c10d::Store& store, int world_size);

/// The domains of a group of some of the ranks, numbered as the group numbers them.
MemoryDomains domains_of(const MemoryDomains& all, const std::vector<int>& ranks);

/// The backend for ranks without CUDA devices when the user names none: shm where all share memory,
/// else gloo.
std::string choose_backend(const MemoryDomains& domains);

}  // namespace lockstep
