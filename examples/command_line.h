#pragma once

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>
#include <torch/cuda.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/job/internal/launched_place.h"

constexpr std::int64_t kMostOfAnything = 1'000'000'000;
constexpr std::int64_t kMostProcesses = 1024;

/// For check(). CLI11 takes what it reads for good: too large a number becomes the largest, 010
/// becomes 8.
inline auto integer_between(std::int64_t least, std::int64_t most) {
  return [=](const std::string& text) {
    const auto value = lockstep::parse_number<std::int64_t>(text);
    if (value && *value >= least && *value <= most && text == std::to_string(*value))
      return std::string();
    return "must be an integer from " + std::to_string(least) + " to " + std::to_string(most) +
           ", not " + text;
  };
}

/// For check().
inline std::string require_positive(const std::string& text) {
  const auto value = lockstep::parse_number<double>(text);
  return value && *value > 0 ? "" : "must be a positive number, not " + text;
}

/// For check().
inline std::string require_not_negative(const std::string& text) {
  const auto value = lockstep::parse_number<double>(text);
  return value && *value >= 0 ? "" : "must be a number of at least 0, not " + text;
}

/// So many processes or replicas unless the user says otherwise: one a CUDA device, else two.
inline int default_replicas() {
  return torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 2;
}

/// Whether this process is the job's first, by whichever launcher started it.
inline bool is_first_process() {
  return lockstep::launched_rank().value_or(0) == 0;
}

/// Whether a launcher has started this process, and not lockstep::spawn(), which is the program's
/// own.
inline bool is_launched() {
  return lockstep::launched_rank() && !lockstep::env::text(lockstep::env::kSpawn);
}

/// For programs that start their processes themselves. Errors: UsageError where a launcher has
/// started this one; `other` is the program for launchers.
inline void refuse_launcher(const std::string& other) {
  if (!is_launched()) return;
  throw lockstep::UsageError(
      "this program starts its processes itself, and a launcher has started it: start it without "
      "one, or take " +
      other);
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
