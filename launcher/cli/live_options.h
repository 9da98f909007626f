#pragma once

#include <string>
#include <vector>

#include "launcher/logs/log_reader.h"

namespace lockstep::inline internal {

// In each of these structs: a `help` that is not empty is all that the command prints; the other
// members are then unset.

/// The command line of `lockstep ps`.
struct PsOptions {
  std::string job{};  ///< empty: all
  bool workers = false;
  bool json = false;
  std::string help{};
};

/// Errors: UsageError.
PsOptions parse_ps_options(const std::vector<std::string>& arguments);

/// The command line of `lockstep stop`.
struct StopOptions {
  std::string job{};
  bool machine_only = false;
  bool now = false;
  std::string help{};
};

/// Errors: UsageError.
StopOptions parse_stop_options(const std::vector<std::string>& arguments);

/// The command line of `lockstep scale`.
struct ScaleOptions {
  std::string job{};
  int worker_count = 1;
  std::string help{};
};

/// Errors: UsageError.
ScaleOptions parse_scale_options(const std::vector<std::string>& arguments);

/// The command line of `lockstep logs`.
struct LogsOptions {
  std::string target{};  ///< a job or a directory
  bool follow = false;
  LogChoice choice{};
  std::string help{};
};

/// Errors: UsageError.
LogsOptions parse_logs_options(const std::vector<std::string>& arguments);

}  // namespace lockstep::inline internal
