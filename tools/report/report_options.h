#pragma once

#include <string>
#include <vector>

namespace lockstep::inline internal {

/// The command line of `lockstep report`.
struct ReportOptions {
  bool help = false;
  /// Of the training.
  std::string folder;
  /// Empty: report.html in the folder.
  std::string output;
};

/// Errors: UsageError.
ReportOptions parse_report_options(const std::vector<std::string>& arguments);

const char* report_help();

}  // namespace lockstep::inline internal
