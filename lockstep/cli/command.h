#pragma once

#include <string>
#include <vector>

namespace lockstep {

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

/// Times the backends of this machine: `lockstep bench all-reduce [flags]`.
int bench_command(const std::vector<std::string>& arguments);

/// Checks which samples a training run had: `lockstep data audit DIR`.
int data_command(const std::vector<std::string>& arguments);

/// Looks at what trainings save: `lockstep snapshot ls DIR`. It becomes the program
/// lockstep-snapshot.
int snapshot_command(const std::vector<std::string>& arguments);

/// Makes a page of what a training says of itself: `lockstep report RUN`.
int report_command(const std::vector<std::string>& arguments);

/// Makes one timeline of the traces of ranks: `lockstep trace merge OUT DIR`.
int trace_command(const std::vector<std::string>& arguments);

/// Checks machines: `lockstep doctor [flags] [-- program]`.
int doctor_command(const std::vector<std::string>& arguments);

/// Starts a project: `lockstep new NAME`.
int new_command(const std::vector<std::string>& arguments);

/// Says what a model will need: `lockstep estimate MODEL [flags]`.
int estimate_command(const std::vector<std::string>& arguments);

/// Checks that ranks can train together on this machine: `lockstep test`.
int test_command(const std::vector<std::string>& arguments);

/// Shows the environment variables that Lockstep reads.
int env_command(const std::vector<std::string>& arguments);

}  // namespace lockstep
