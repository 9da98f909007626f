#include "lockstep/comm/internal/backend_choice.h"

#include <algorithm>
#include <map>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/comm/internal/store_wait.h"
#include "lockstep/os/machine/machine.h"

namespace lockstep::inline internal {
namespace {

std::string domain_key(int rank) {
  return concat("memory_domain/", rank);
}

}  // namespace

std::string own_memory_domain() {
  return concat(memory_domain(), " ", env::text(env::kMemoryDomain).value_or(""));
}

void publish_memory_domain(c10d::Store& store, int rank) {
  store.set(domain_key(rank), own_memory_domain());
}

MemoryDomains read_memory_domains(c10d::Store& store, int world_size) {
  std::vector<std::string> names;
  for (int rank = 0; rank < world_size; ++rank) names.push_back(store.get_to_str(domain_key(rank)));
  return number_by_first(names);
}

MemoryDomains exchange_memory_domains(c10d::Store& store, int rank, int world_size,
                                      const Deadline& deadline) {
  publish_memory_domain(store, rank);
  std::vector<std::string> keys;
  for (int other = 0; other < world_size; ++other) keys.push_back(domain_key(other));
  const auto missing = wait_for_keys(store, keys, deadline);
  if (!missing.empty()) {
    throw TimeoutError(concat("rank", missing.size() > 1 ? "s " : " ", join_numbers(missing),
                              " did not publish their memory domain in time; check their logs"),
                       {.own_rank = rank, .ranks = missing});
  }
  return read_memory_domains(store, world_size);
}

MemoryDomains domains_of(const MemoryDomains& all, const std::vector<int>& ranks) {
  std::vector<int> names;
  for (const int rank : ranks) names.push_back(all[static_cast<std::size_t>(rank)]);
  return number_by_first(names);
}

std::string choose_backend(const MemoryDomains& domains) {
  std::map<int, int> ranks_of_domain;
  int most_ranks = 1;
  for (const int domain : domains) most_ranks = std::max(most_ranks, ++ranks_of_domain[domain]);
  if (most_ranks > kMostShmRanks) return "gloo";
  if (ranks_of_domain.size() <= 1) return "shm";
  return most_ranks > 1 ? "hierarchical" : "gloo";
}

}  // namespace lockstep::inline internal
