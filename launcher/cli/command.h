#pragma once

#include <string>
#include <vector>

namespace lockstep::inline internal {

/// One subcommand of the binary `lockstep`.
struct Command {
  const char* name;
  const char* summary;
  /// Gets what follows the subcommand; returns the exit code. Errors: Error.
  int (*run)(const std::vector<std::string>& arguments);
};

/// Starts a job: `lockstep run [flags] program [arguments]`.
int run_command(const std::vector<std::string>& arguments);

/// Shows the jobs that run: `lockstep ps`.
int ps_command(const std::vector<std::string>& arguments);

/// Prints the logs of a job: `lockstep logs`.
int logs_command(const std::vector<std::string>& arguments);

/// Changes the number of workers of a job that runs: `lockstep scale`.
int scale_command(const std::vector<std::string>& arguments);

/// Ends a job that runs: `lockstep stop`.
int stop_command(const std::vector<std::string>& arguments);

}  // namespace lockstep::inline internal
