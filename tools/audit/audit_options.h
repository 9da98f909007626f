#pragma once

#include <string>
#include <vector>

namespace lockstep::inline internal {

/// The command line of `lockstep audit`.
struct AuditOptions {
  bool help = false;
  std::string folder{};
  bool json = false;
};

/// Errors: UsageError.
AuditOptions parse_audit_options(const std::vector<std::string>& arguments);

const char* audit_help();

}  // namespace lockstep::inline internal
