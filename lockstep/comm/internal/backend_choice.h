#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/base/internal/deadline.h"

namespace c10d {
class Store;
}

namespace lockstep::inline internal {

/// For each rank of a job or group, the first rank with which it can share memory: itself if it is
/// the first of its machine (or container).
using MemoryDomains = std::vector<int>;

/// Maximum number of ranks of one machine that can share memory.
inline constexpr int kMostShmRanks = 64;

/// Equal in processes that can share memory; LOCKSTEP_MEMORY_DOMAIN is part of it.
std::string own_memory_domain();

/// Publishes this rank's domain in the store of the job or group. Call it before joining.
void publish_memory_domain(c10d::Store& store, int rank);

/// Reads all ranks' domains. Call it after joining.
MemoryDomains read_memory_domains(c10d::Store& store, int world_size);

/// Both, for ranks that have not joined in between.
/// Errors: TimeoutError with the missing ranks.
MemoryDomains exchange_memory_domains(c10d::Store& store, int rank, int world_size,
                                      const Deadline& deadline);

/// Numbers each rank by the first that has the same name.
template <class Name>
MemoryDomains number_by_first(const std::vector<Name>& names) {
  std::map<Name, int> first;
  MemoryDomains domains;
  for (const Name& name : names) {
    domains.push_back(first.try_emplace(name, static_cast<int>(domains.size())).first->second);
  }
  return domains;
}

/// The domains of a group of some of the ranks, in the group's numbering.
MemoryDomains domains_of(const MemoryDomains& all, const std::vector<int>& ranks);

/// The default backend for ranks without CUDA devices: shm if all share memory, hierarchical if
/// some do, else gloo.
std::string choose_backend(const MemoryDomains& domains);

}  // namespace lockstep::inline internal
