#include "lockstep/os/machine.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>
#include <system_error>

#include <sched.h>

namespace lockstep {

int allowed_cpu_count() {
  // The kernel refuses a set smaller than its own; 8192 is the most that Linux supports.
  constexpr int kMostCpus = 8192;
  cpu_set_t* const set = CPU_ALLOC(kMostCpus);
  if (set == nullptr) return 1;
  const std::size_t bytes = CPU_ALLOC_SIZE(kMostCpus);
  const int count = ::sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 1;
  CPU_FREE(set);
  return std::max(count, 1);
}

int nvidia_device_count() {
  const std::string prefix = "nvidia";
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    const bool numbered =
        name.size() > prefix.size() && name.starts_with(prefix) &&
        std::all_of(name.begin() + static_cast<std::ptrdiff_t>(prefix.size()), name.end(),
                    [](unsigned char c) { return std::isdigit(c) != 0; });
    if (numbered) ++count;
  }
  return count;
}

}  // namespace lockstep
