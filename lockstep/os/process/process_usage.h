#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <sys/types.h>

namespace lockstep::inline internal {

/// Resources that a process has used.
struct ProcessUsage {
  /// CPU time, user and system, without its children.
  double cpu_seconds = 0;
  std::uint64_t resident_bytes = 0;
};

/// Empty if there is no such process.
std::optional<ProcessUsage> process_usage(pid_t pid);

/// Parses /proc/<pid>/stat; empty for other texts.
std::optional<ProcessUsage> parse_process_stat(const std::string& text, long ticks_per_second,
                                               long page_bytes);

}  // namespace lockstep::inline internal
