#pragma once

#include <string>
#include <vector>

namespace lockstep::inline internal {

/// The command line of `lockstep trace`.
struct TraceCommandOptions {
  bool help = false;
  std::string target;
  /// Files, or one folder.
  std::vector<std::string> sources;
};

/// Errors: UsageError.
TraceCommandOptions parse_trace_options(const std::vector<std::string>& arguments);

const char* trace_help();

}  // namespace lockstep::inline internal
