#include "lockstep/os/freed_memory.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <string_view>

#include <malloc.h>

namespace lockstep {
namespace {

bool is_set_by_the_user() {
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  if (tunables != nullptr && std::string_view(tunables).find("glibc.malloc.") != std::string::npos)
    return true;
  constexpr std::array kVariables = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_",
                                     "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_"};
  return std::ranges::any_of(kVariables,
                             [](const char* name) { return std::getenv(name) != nullptr; });
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

}  // namespace lockstep
