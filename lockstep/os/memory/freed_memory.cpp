#include "lockstep/os/memory/freed_memory.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include <malloc.h>

#include "lockstep/base/internal/env.h"

namespace lockstep::inline internal {
namespace {

bool is_set_by_the_user() {
  const auto tunables = env::text(env::kGlibcTunables);
  if (tunables && tunables->find("glibc.malloc.") != std::string::npos) return true;
  constexpr std::array kVariables = {&env::kMallocTrimThreshold, &env::kMallocMmapThreshold,
                                     &env::kMallocMmapMax, &env::kMallocTopPad};
  return std::ranges::any_of(
      kVariables, [](const env::Variable* variable) { return env::text(*variable).has_value(); });
}

}  // namespace

bool keep_freed_memory() {
#ifdef M_TRIM_THRESHOLD
  constexpr int kLargestMmapThreshold = 32 << 20;  // glibc takes no more
  return !is_set_by_the_user() && ::mallopt(M_MMAP_THRESHOLD, kLargestMmapThreshold) == 1 &&
         ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max()) == 1;
#else
  return false;
#endif
}

void release_freed_memory() {
#ifdef M_TRIM_THRESHOLD
  ::malloc_trim(0);
#endif
}

}  // namespace lockstep::inline internal
