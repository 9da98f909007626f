#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

/// What a worker says of its failure.
struct ErrorReport {
  /// The first line, free of control characters.
  std::string message{};
  /// 0: not given.
  int exit_code = 0;
};

/// Reads a worker's error file (torchrun's error.json). All is empty when there is no such file or
/// it is something else.
ErrorReport read_error_file(const std::filesystem::path& file);

}  // namespace lockstep
