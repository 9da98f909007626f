#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/launched_place.h"

/// Reads the command line of a program that runs in several processes. Every process has the same
/// arguments: the first alone shows the help, and all say what is wrong, since the launcher ends
/// the others when one fails. False: the help was asked for. Errors: UsageError.
inline bool parse_command_line(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::Success& help) {
    if (lockstep::launched_rank().value_or(0) == 0) app.exit(help);
    return false;
  } catch (const CLI::ParseError& error) {
    throw lockstep::UsageError(std::string(error.what()) + "; see --help");
  }
}
