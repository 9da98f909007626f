#include "lockstep/os/machine/own_control_group.h"

#include <chrono>
#include <fstream>
#include <functional>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/os/machine/control_groups.h"
#include "lockstep/os/process/child_process.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

// In which what goes on gets into the group above, however quickly it starts others meanwhile.
constexpr std::chrono::milliseconds kTimeToMove{1'000};

constexpr const char* kKill = "cgroup.kill";

bool may_write(const fs::path& path) {
  return ::access(path.c_str(), W_OK) == 0;
}

// It and those below, each before those in it.
std::vector<fs::path> folders_of(const fs::path& place) {
  std::vector<fs::path> folders = {place};
  for (std::size_t next = 0; next < folders.size(); ++next) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(fs::path(folders[next]), error)) {
      if (entry.is_directory(error)) folders.push_back(entry.path());
    }
  }
  return folders;
}

// Before each look: what is still in the way is done with.
void remove_folders(const fs::path& place, const Deadline& deadline,
                    const std::function<void(const fs::path&)>& before_look) {
  for (;;) {
    const std::vector<fs::path> folders = folders_of(place);
    for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) {
      before_look(*folder);
      ::rmdir(folder->c_str());
    }
    if (::access(place.c_str(), F_OK) != 0 || deadline.passed()) return;
    ::usleep(1000);
  }
}

}  // namespace

fs::path place_for_control_group(const std::string& name, const fs::path& root) {
  const fs::path above = own_control_group(root);
  const bool possible = !above.empty() && may_write(above) && may_write(above / "cgroup.procs");
  return possible ? above / name : fs::path();
}

UniqueFd make_control_group(const fs::path& place) noexcept {
  if (place.empty() || ::mkdir(place.c_str(), 0755) != 0) return UniqueFd();
  UniqueFd folder(::open(place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid() && ::faccessat(folder.get(), kKill, W_OK, 0) == 0) return folder;
  ::rmdir(place.c_str());
  return UniqueFd();
}

void kill_control_group(const fs::path& place) noexcept try {
  if (place.empty()) return;
  const UniqueFd kill(::open((place / kKill).c_str(), O_WRONLY | O_CLOEXEC));
  if (!kill.valid()) return;
  [[maybe_unused]] const auto written = ::write(kill.get(), "1", 1);
  remove_folders(place, Deadline::after(kTimeToDie), [](const fs::path&) {});
} catch (...) {
  // No memory: nothing more can be done.
}

void dissolve_control_group(const fs::path& place) noexcept try {
  if (place.empty() || ::rmdir(place.c_str()) == 0) return;
  const fs::path above = place.parent_path() / "cgroup.procs";
  remove_folders(place, Deadline::after(kTimeToMove), [&](const fs::path& folder) {
    std::ifstream processes(folder / "cgroup.procs");
    for (std::string process; std::getline(processes, process);) {
      std::ofstream(above) << process << std::flush;
    }
  });
} catch (...) {
  // No memory: it stays.
}

}  // namespace lockstep::inline internal
