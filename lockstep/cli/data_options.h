#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep {

/// The command line of `lockstep data`.
struct DataOptions {
  enum class Action { kHelp, kGet, kList, kAudit };

  Action action = Action::kHelp;
  /// Of the data set; empty where a recipe file has only one.
  std::string name;
  /// Of get, empty: data/<name>. Of audit: of the log.
  std::string folder;
  /// Empty: PIP_INDEX_URL, or PyPI.
  std::string index_url;
  /// Empty: those that are built in.
  std::string recipe_file;
  bool force = false;
  std::chrono::seconds timeout{30};
  bool json = false;
};

/// Errors: UsageError.
DataOptions parse_data_options(const std::vector<std::string>& arguments);

const char* data_help();

}  // namespace lockstep
