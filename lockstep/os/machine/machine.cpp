#include "lockstep/os/machine/machine.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <system_error>

#include <pwd.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/machine/affinity.h"
#include "lockstep/os/machine/control_groups.h"

namespace lockstep::inline internal {
namespace {

using Path = std::filesystem::path;

// The first number of a file; nothing where there is no file, or "max" in it.
std::optional<std::uint64_t> number_in(const Path& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

// The number behind a word that starts a line: "MemAvailable:   123 kB".
std::optional<std::uint64_t> number_after(const Path& path, const std::string& word) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(word)) return std::strtoull(line.c_str() + word.size(), nullptr, 10);
  }
  return std::nullopt;
}

}  // namespace

int usable_cpu_count(int allowed) {
  const double cpus = std::min(static_cast<double>(allowed), cpu_quota().value_or(allowed));
  return std::max(1, static_cast<int>(cpus + 0.999));
}

std::uint64_t available_memory_bytes() {
  constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();
  const auto kilobytes = number_after("/proc/meminfo", "MemAvailable:");
  std::uint64_t available = kilobytes ? *kilobytes * 1024 : kNoLimit;
  const auto limit = [&](const Path& group, const char* most, const char* current) {
    const auto limit_bytes = number_in(group / most);
    const auto used_bytes = number_in(group / current);
    if (!limit_bytes || !used_bytes) return;
    // Cached files count as used, and are given up when memory is short.
    const std::uint64_t cached = number_after(group / "memory.stat", "inactive_file ").value_or(0);
    const std::uint64_t used = *used_bytes - std::min(*used_bytes, cached);
    available = std::min(available, *limit_bytes - std::min(*limit_bytes, used));
  };
  for_each_control_group("memory", [&](const Path& group) {
    limit(group, "memory.max", "memory.current");
    limit(group, "memory.limit_in_bytes", "memory.usage_in_bytes");
  });
  return available;
}

std::uint64_t total_memory_bytes() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::string host_name() {
  char name[256] = "localhost";
  // A name that is cut short has no end.
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

std::string user_name() {
  const uid_t user = ::geteuid();
  std::array<char, 4096> buffer;
  passwd entry{};
  passwd* found = nullptr;
  ::getpwuid_r(user, &entry, buffer.data(), buffer.size(), &found);
  return found == nullptr ? concat("user ", user) : std::string(found->pw_name);
}

std::string memory_domain() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const Path network = std::filesystem::read_symlink("/proc/self/ns/net", error);
  return concat(boot, " ", network.string());
}

int allowed_cpu_count() {
  return std::max(static_cast<int>(allowed_cpus().size()), 1);
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

}  // namespace lockstep::inline internal
