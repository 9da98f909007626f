#include "lockstep/os/machine/control_groups.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/os/process/child_process.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;
using Path = fs::path;

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
  return fs::exists(mounts / "unified/cgroup.procs", error) ? mounts / "unified" : mounts;
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

// In which what goes on gets into the group above, however quickly it starts others meanwhile.
constexpr std::chrono::milliseconds kTimeToMove{1'000};

constexpr const char* kKill = "cgroup.kill";

bool may_write(const Path& path) {
  return ::access(path.c_str(), W_OK) == 0;
}

// It and those below, each before those in it.
std::vector<Path> folders_of(const Path& place) {
  std::vector<Path> folders = {place};
  for (std::size_t next = 0; next < folders.size(); ++next) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(Path(folders[next]), error)) {
      if (entry.is_directory(error)) folders.push_back(entry.path());
    }
  }
  return folders;
}

// Before each look: what is still in the way is done with.
void remove_folders(const Path& place, const Deadline& deadline,
                    const std::function<void(const Path&)>& before_look) {
  for (;;) {
    const std::vector<Path> folders = folders_of(place);
    for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) {
      before_look(*folder);
      ::rmdir(folder->c_str());
    }
    if (::access(place.c_str(), F_OK) != 0 || deadline.passed()) return;
    ::usleep(1000);
  }
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
    if (fs::exists(folder / "cgroup.procs", error)) return folder;
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

Path place_for_control_group(const std::string& name, const Path& root) {
  const Path above = own_control_group(root);
  const bool possible = !above.empty() && may_write(above) && may_write(above / "cgroup.procs");
  return possible ? above / name : Path();
}

UniqueFd make_control_group(const Path& place) noexcept {
  if (place.empty() || ::mkdir(place.c_str(), 0755) != 0) return UniqueFd();
  UniqueFd folder(::open(place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid() && ::faccessat(folder.get(), kKill, W_OK, 0) == 0) return folder;
  ::rmdir(place.c_str());
  return UniqueFd();
}

void kill_control_group(const Path& place) noexcept try {
  if (place.empty()) return;
  const UniqueFd kill(::open((place / kKill).c_str(), O_WRONLY | O_CLOEXEC));
  if (!kill.valid()) return;
  [[maybe_unused]] const auto written = ::write(kill.get(), "1", 1);
  remove_folders(place, Deadline::after(kTimeToDie), [](const Path&) {});
} catch (...) {
  // No memory: nothing more can be done.
}

void dissolve_control_group(const Path& place) noexcept try {
  if (place.empty() || ::rmdir(place.c_str()) == 0) return;
  const Path above = place.parent_path() / "cgroup.procs";
  remove_folders(place, Deadline::after(kTimeToMove), [&](const Path& folder) {
    std::ifstream processes(folder / "cgroup.procs");
    for (std::string process; std::getline(processes, process);) {
      std::ofstream(above) << process << std::flush;
    }
  });
} catch (...) {
  // No memory: it stays.
}

}  // namespace lockstep::inline internal
