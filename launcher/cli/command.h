#pragma once

#include <string>
#include <vector>

namespace lockstep::inline internal {

/// A command of the program `lockstep`.
struct Command {
  const char* name;
  const char* summary;
  /// Gets the words after the command's name; returns the exit code.
  /// Errors: Error.
  int (*run)(const std::vector<std::string>& arguments);
};

/// Starts a job: `lockstep run [flags] program [arguments]`.
int run_command(const std::vector<std::string>& arguments);

/// Lists running jobs: `lockstep ps`.
int ps_command(const std::vector<std::string>& arguments);

/// Prints the logs of a job: `lockstep logs`.
int logs_command(const std::vector<std::string>& arguments);

/// Changes a running job's number of workers on this machine: `lockstep scale`.
int scale_command(const std::vector<std::string>& arguments);

/// Stops a running job: `lockstep stop`.
int stop_command(const std::vector<std::string>& arguments);

}  // namespace lockstep::inline internal
