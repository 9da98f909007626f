#pragma once

#include <string>

#include <CLI/CLI.hpp>
#include <torch/cuda.h>

#include "lockstep/base/error.h"
#include "lockstep/base/launched_place.h"

/// So many processes or replicas unless the user says otherwise: one a CUDA device, else two.
inline int default_replicas() {
  return torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 2;
}

/// Whether this process is the job's first, by whichever launcher started it.
inline bool is_first_process() {
  return lockstep::launched_rank().value_or(0) == 0;
}

/// Reads the command line of a program that runs in several processes. Every process has the same
/// arguments: the first alone shows the help, and all say what is wrong, since the launcher ends
/// the others when one fails. False: the help was asked for. Errors: UsageError.
inline bool parse_command_line(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::Success& help) {
    if (is_first_process()) app.exit(help);
    return false;
  } catch (const CLI::ParseError& error) {
    throw lockstep::UsageError(std::string(error.what()) + "; see --help");
  }
}
