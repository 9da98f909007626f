#include "lockstep/os/memory/out_of_memory.h"

#include <fstream>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/machine/control_groups.h"
#include "lockstep/os/machine/machine.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

constexpr auto kWholeMachine = "the machine had none left";

std::optional<std::uint64_t> count_in(const fs::path& counter) {
  std::ifstream file(counter);
  std::uint64_t count = 0;
  for (std::string word; file >> word;) {
    if (word == "oom_kill" && file >> count) return count;
  }
  return std::nullopt;
}

}  // namespace

OutOfMemoryKills::OutOfMemoryKills(const fs::path& root) {
  const auto count_by = [&](const fs::path& counter, const fs::path& limit) {
    if (!counter_.empty() || !count_in(counter)) return;
    counter_ = counter;
    limit_ = limit;
  };
  for_each_control_group(
      "memory",
      [&](const fs::path& group) {
        count_by(group / "memory.oom_control", group / "memory.limit_in_bytes");
        count_by(group / "memory.events", group / "memory.max");
      },
      root);
  count_by(root / "proc/vmstat", "");
  before_ = count_in(counter_).value_or(0);
}

std::optional<std::string> OutOfMemoryKills::since() const {
  if (count_in(counter_).value_or(0) <= before_) return std::nullopt;
  std::uint64_t bytes = 0;
  if (limit_.empty() || !(std::ifstream(limit_) >> bytes)) return kWholeMachine;
  // Version 1 has a number where there is no limit, too: the largest.
  if (bytes >= total_memory_bytes()) return kWholeMachine;
  return concat("its memory cgroup has a limit of ", bytes / 1'000'000, " MB (", limit_.string(),
                ")");
}

}  // namespace lockstep::inline internal
