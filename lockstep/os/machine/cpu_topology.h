#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline internal {

/// Position of a processor (a hardware thread) in its machine.
struct CpuPlace {
  int cpu = 0;
  int node = 0;
  int package = 0;
  /// Lowest processor of the same physical core.
  int core = 0;
  /// Lowest processor that shares its last-level cache.
  int cache = 0;

  friend bool operator==(const CpuPlace&, const CpuPlace&) = default;
};

/// Positions of processors, in the given order. For what the system does not report (in containers)
/// it assumes one node, one package, one core per processor, one cache per package. `root` replaces
/// "/" in tests.
std::vector<CpuPlace> read_cpu_places(const std::vector<int>& cpus,
                                      const std::filesystem::path& root = "/");

/// Parses the kernel's list of processors, "0-2,4", into ascending unique numbers. Ignores what is
/// no number or range.
std::vector<int> parse_cpu_list(std::string_view text);

}  // namespace lockstep::inline internal
