#include "tests/fuzz/differential/groups.h"

#include <cstdlib>
#include <numeric>
#include <vector>

#include "lockstep/base/internal/env.h"
#include "lockstep/comm/init_process_group.h"

namespace lockstep::differential {
namespace {

// What groups hold, and what they number, begins again now and then.
constexpr int kPlansOfAGroup = 50;

}  // namespace

ProcessGroup Groups::default_group() {
  return default_process_group();
}

const ProcessGroup& Groups::get(Backend backend) {
  Entry& entry = entries_[backend];
  if (!entry.group || ++entry.plans > kPlansOfAGroup) entry = {make(backend)};
  return entry.group;
}

ProcessGroup Groups::make(Backend backend) const {
  std::vector<int> all(static_cast<std::size_t>(witness_.world_size()));
  std::iota(all.begin(), all.end(), 0);
  // Hierarchical: the last rank is on a machine of its own, of four ranks the last two.
  const int split = witness_.world_size() == 4 ? 2 : witness_.world_size() - 1;
  const bool is_apart = backend == Backend::kHierarchical && witness_.rank() >= split;
  ::setenv(env::kMemoryDomain.name, is_apart ? "b" : "a", 1);
  const char* const name = backend == Backend::kShm    ? "shm"
                           : backend == Backend::kGloo ? "gloo"
                                                       : "hierarchical";
  return witness_.new_group(all, {.backend = name, .timeout = std::chrono::seconds(20)});
}

}  // namespace lockstep::differential
