#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <sys/types.h>

namespace lockstep::inline internal {

/// What a process has taken of its machine so far.
struct ProcessUsage {
  /// Of processors, in itself and in the system on its behalf; without its children.
  double cpu_seconds = 0;
  std::uint64_t resident_bytes = 0;
};

/// Nothing when there is no such process.
std::optional<ProcessUsage> process_usage(pid_t pid);

/// The same from the text of /proc/<pid>/stat. Nothing for anything else.
std::optional<ProcessUsage> parse_process_stat(const std::string& text, long ticks_per_second,
                                               long page_bytes);

}  // namespace lockstep::inline internal
