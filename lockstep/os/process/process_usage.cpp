#include "lockstep/os/process/process_usage.h"

#include <array>
#include <sstream>

#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

std::optional<ProcessUsage> process_usage(pid_t pid) {
  const UniqueFd file(::open(concat("/proc/", pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return std::nullopt;
  std::array<char, 2048> text;
  const ssize_t size = ::read(file.get(), text.data(), text.size());
  if (size <= 0) return std::nullopt;
  return parse_process_stat({text.data(), static_cast<std::size_t>(size)}, ::sysconf(_SC_CLK_TCK),
                            ::sysconf(_SC_PAGESIZE));
}

std::optional<ProcessUsage> parse_process_stat(const std::string& text, long ticks_per_second,
                                               long page_bytes) {
  // The name, in parentheses, may hold anything, parentheses too. See proc(5).
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  constexpr int kFieldsBeforeTimes = 11;  // state is the first
  for (int i = 0; i < kFieldsBeforeTimes; ++i) fields >> skipped;
  std::uint64_t user_ticks = 0;
  std::uint64_t system_ticks = 0;
  fields >> user_ticks >> system_ticks;
  constexpr int kFieldsBeforePages = 8;
  for (int i = 0; i < kFieldsBeforePages; ++i) fields >> skipped;
  std::int64_t pages = 0;
  fields >> pages;
  if (!fields || pages < 0) return std::nullopt;
  return ProcessUsage{
      .cpu_seconds =
          static_cast<double>(user_ticks + system_ticks) / static_cast<double>(ticks_per_second),
      .resident_bytes = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes)};
}

}  // namespace lockstep::inline internal
