#include "lockstep/os/machine/cpu_topology.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <system_error>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"

namespace lockstep::inline internal {
namespace {

using Path = std::filesystem::path;

std::string first_line(const Path& file) {
  std::string line;
  std::getline(std::ifstream(file) >> std::ws, line);
  return line;
}

int number_or(const Path& file, int otherwise) {
  return parse_number<int>(first_line(file)).value_or(otherwise);
}

// The first of a list of processors in a file.
int lowest_or(const Path& file, int otherwise) {
  const std::vector<int> cpus = parse_cpu_list(first_line(file));
  return cpus.empty() ? otherwise : cpus.front();
}

std::map<int, int> nodes_by_cpu(const Path& root) {
  const Path nodes = root / "sys/devices/system/node";
  std::map<int, int> result;
  for (const int node : parse_cpu_list(first_line(nodes / "online"))) {
    for (const int cpu : parse_cpu_list(first_line(nodes / concat("node", node) / "cpulist"))) {
      result[cpu] = node;
    }
  }
  return result;
}

// Nothing is -1.
int lowest_of_last_cache(const Path& caches) {
  int highest = 0;
  int lowest = -1;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(caches, error)) {
    if (!entry.path().filename().string().starts_with("index")) continue;
    const int level = number_or(entry.path() / "level", 0);
    if (level <= highest || first_line(entry.path() / "type") == "Instruction") continue;
    highest = level;
    lowest = lowest_or(entry.path() / "shared_cpu_list", -1);
  }
  return lowest;
}

void add_range(std::string_view range, std::vector<int>& cpus) {
  // More than any machine has: a file that is something else makes no endless list.
  constexpr int kTooMany = 65536;
  const auto dash = range.find('-');
  const auto first = parse_number<int>(range.substr(0, dash));
  const auto last =
      dash == std::string_view::npos ? first : parse_number<int>(range.substr(dash + 1));
  if (!first || !last || *first < 0 || *last >= kTooMany) return;
  for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
}

}  // namespace

std::vector<CpuPlace> read_cpu_places(const std::vector<int>& cpus, const Path& root) {
  const std::map<int, int> nodes = nodes_by_cpu(root);
  std::map<int, int> first_of_package;
  std::vector<CpuPlace> places;
  for (const int cpu : cpus) {
    const Path folder = root / "sys/devices/system/cpu" / concat("cpu", cpu);
    const auto node = nodes.find(cpu);
    CpuPlace place{.cpu = cpu, .node = node == nodes.end() ? 0 : node->second};
    // "-1" where the machine does not say.
    place.package = std::max(number_or(folder / "topology/physical_package_id", 0), 0);
    place.core = lowest_or(folder / "topology/thread_siblings_list", cpu);
    place.cache = lowest_of_last_cache(folder / "cache");
    const int first = first_of_package.try_emplace(place.package, cpu).first->second;
    if (place.cache < 0) place.cache = first;
    places.push_back(place);
  }
  return places;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n";
  std::vector<int> cpus;
  while (!text.empty()) {
    const auto comma = std::min(text.find(','), text.size());
    std::string_view range = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    range.remove_prefix(std::min(range.find_first_not_of(kSpace), range.size()));
    add_range(range.substr(0, range.find_last_not_of(kSpace) + 1), cpus);
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

}  // namespace lockstep::inline internal
