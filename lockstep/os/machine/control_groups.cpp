#include "lockstep/os/machine/control_groups.h"

#include <algorithm>
#include <fstream>
#include <system_error>
#include <vector>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"

namespace lockstep::inline internal {
namespace {

using Path = std::filesystem::path;

// Of how many processors the time is: nothing where there is no limit, which version 2 calls "max"
// and version 1 "-1".
std::optional<double> processors_of(const std::string& quota_us, const std::string& period_us) {
  const auto quota = parse_number<double>(quota_us);
  const auto period = parse_number<double>(period_us);
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return *quota / *period;
}

std::string word_in(const Path& file) {
  std::string word;
  std::ifstream(file) >> word;
  return word;
}

// Beside version 1, whose controllers have a folder each, version 2 has one too.
Path unified_mount(const Path& mounts) {
  std::error_code error;
  return std::filesystem::exists(mounts / "unified/cgroup.procs", error) ? mounts / "unified"
                                                                         : mounts;
}

// This process's group of one hierarchy.
struct OwnGroup {
  Path mount;
  Path below;
};

// Those that limit what this controller counts: that of version 2, and that of version 1 where the
// controller is one of its hierarchy's. Without a controller, that of version 2 alone.
std::vector<OwnGroup> own_groups(const std::string& controller, const Path& root) {
  const Path mounts = root / "sys/fs/cgroup";
  std::vector<OwnGroup> groups;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = concat(",", line.substr(first + 1, second - first - 1), ",");
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(concat(",", controller, ",")) == std::string::npos) continue;
    groups.push_back({.mount = unified ? unified_mount(mounts) : mounts / controller,
                      .below = Path(line.substr(second + 1)).relative_path()});
  }
  return groups;
}

}  // namespace

void for_each_control_group(const std::string& controller,
                            const std::function<void(const Path&)>& visit, const Path& root) {
  for (OwnGroup& group : own_groups(controller, root)) {
    for (;; group.below = group.below.parent_path()) {
      visit(group.mount / group.below);
      if (group.below.empty()) break;
    }
  }
}

Path own_control_group(const Path& root) {
  for (const OwnGroup& group : own_groups("", root)) {
    Path folder = group.mount / group.below;
    std::error_code error;
    if (std::filesystem::exists(folder / "cgroup.procs", error)) return folder;
  }
  return {};
}

std::optional<double> cpu_quota(const Path& root) {
  std::optional<double> least;
  const auto limit = [&](std::optional<double> cpus) {
    if (cpus) least = std::min(least.value_or(*cpus), *cpus);
  };
  const auto visit = [&](const Path& group) {
    std::string quota;
    std::string period;
    std::ifstream(group / "cpu.max") >> quota >> period;
    limit(processors_of(quota, period));
    limit(processors_of(word_in(group / "cpu.cfs_quota_us"), word_in(group / "cpu.cfs_period_us")));
  };
  for_each_control_group("cpu", visit, root);
  return least;
}

}  // namespace lockstep::inline internal
