#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline internal {

/// Where one processor (a hardware thread) stands in its machine.
struct CpuPlace {
  int cpu = 0;
  int node = 0;
  int package = 0;
  /// The lowest processor of the same physical core.
  int core = 0;
  /// The lowest processor that shares its last-level cache.
  int cache = 0;

  friend bool operator==(const CpuPlace&, const CpuPlace&) = default;
};

/// The places of processors, in the order given. What the system does not tell (containers hide
/// it) is taken as the simplest machine: one node, one package, a core for each processor, one
/// cache for each package. `root` stands for "/".
std::vector<CpuPlace> read_cpu_places(const std::vector<int>& cpus,
                                      const std::filesystem::path& root = "/");

/// Numbers of processors as the kernel writes them: "0-2,4". Ascending, without repetition. What is
/// no number or range is passed over.
std::vector<int> parse_cpu_list(std::string_view text);

}  // namespace lockstep::inline internal
