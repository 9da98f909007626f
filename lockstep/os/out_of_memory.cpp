#include "lockstep/os/out_of_memory.h"

#include <fstream>

#include "lockstep/base/concat.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Behind the second colon of a line "4:memory:/job", "0::/job".
std::optional<std::string> path_in(const fs::path& memberships, const std::string& controller) {
  std::ifstream file(memberships);
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if ((',' + controllers + ',').find(',' + controller + ',') != std::string::npos) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

// In a container the group may be mounted as the root of the tree.
fs::path folder_of(const fs::path& root, const std::string& group, const char* file) {
  const fs::path inside = root / fs::path(group).relative_path();
  return fs::exists(inside / file) ? inside : root;
}

std::optional<std::uint64_t> count_in(const fs::path& counter) {
  std::ifstream file(counter);
  std::uint64_t count = 0;
  for (std::string word; file >> word;) {
    if (word == "oom_kill" && file >> count) return count;
  }
  return std::nullopt;
}

}  // namespace

OutOfMemoryKills::OutOfMemoryKills(fs::path proc, fs::path cgroups) {
  if (const auto group = path_in(proc / "self/cgroup", "memory")) {
    const fs::path folder = folder_of(cgroups / "memory", *group, "memory.oom_control");
    counter_ = folder / "memory.oom_control";
    limit_ = folder / "memory.limit_in_bytes";
  } else if (const auto unified = path_in(proc / "self/cgroup", "")) {
    const fs::path folder = folder_of(cgroups, *unified, "memory.events");
    counter_ = folder / "memory.events";
    limit_ = folder / "memory.max";
  }
  if (!count_in(counter_)) {
    counter_ = proc / "vmstat";
    limit_.clear();
  }
  before_ = count_in(counter_).value_or(0);
}

std::optional<std::string> OutOfMemoryKills::since() const {
  if (count_in(counter_).value_or(0) <= before_) return std::nullopt;
  std::uint64_t bytes = 0;
  if (limit_.empty() || !(std::ifstream(limit_) >> bytes)) return "the machine had none left";
  return concat("its memory cgroup has a limit of ", bytes / 1'000'000, " MB (", limit_.string(),
                ")");
}

}  // namespace lockstep
