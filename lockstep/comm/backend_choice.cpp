#include "lockstep/comm/backend_choice.h"

#include <algorithm>
#include <map>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/concat.h"
#include "lockstep/os/machine.h"

namespace lockstep {
namespace {

std::string domain_key(int rank) {
  return concat("memory_domain/", rank);
}

// Numbers each rank by the first that has the same name.
template <class Name>
MemoryDomains number_by_first(const std::vector<Name>& names) {
  std::map<Name, int> first;
  MemoryDomains domains;
  for (const Name& name : names) {
    domains.push_back(first.try_emplace(name, static_cast<int>(domains.size())).first->second);
  }
  return domains;
}

}  // namespace

void publish_memory_domain(c10d::Store& store, int rank) {
  store.set(domain_key(rank), memory_domain());
}

MemoryDomains read_memory_domains(c10d::Store& store, int world_size) {
  std::vector<std::string> names;
  for (int rank = 0; rank < world_size; ++rank) names.push_back(store.get_to_str(domain_key(rank)));
  return number_by_first(names);
}

MemoryDomains domains_of(const MemoryDomains& all, const std::vector<int>& ranks) {
  std::vector<int> names;
  for (const int rank : ranks) names.push_back(all[static_cast<std::size_t>(rank)]);
  return number_by_first(names);
}

std::string choose_backend(const MemoryDomains& domains) {
  constexpr std::size_t kMostShmRanks = 64;
  const bool one_domain =
      std::all_of(domains.begin(), domains.end(), [](int domain) { return domain == 0; });
  return one_domain && domains.size() <= kMostShmRanks ? "shm" : "gloo";
}

}  // namespace lockstep
