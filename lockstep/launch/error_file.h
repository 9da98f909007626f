#pragma once

#include <filesystem>
#include <optional>
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

/// The whole of a worker's error file as JSON in one line; nothing where there is none.
std::optional<std::string> error_document(const std::filesystem::path& file);

}  // namespace lockstep
