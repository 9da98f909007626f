#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// The command line of `lockstep ps`.
struct PsOptions {
  std::string job{};  ///< empty: all
  bool workers = false;
  bool json = false;
  bool help = false;
};

/// Errors: UsageError.
PsOptions parse_ps_options(const std::vector<std::string>& arguments);

}  // namespace lockstep
