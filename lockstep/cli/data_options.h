#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// The command line of `lockstep data`.
struct DataOptions {
  bool help = false;
  /// Of the log of samples.
  std::string folder;
  bool json = false;
};

/// Errors: UsageError.
DataOptions parse_data_options(const std::vector<std::string>& arguments);

const char* data_help();

}  // namespace lockstep
