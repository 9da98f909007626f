#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "diagnose/verdict/crash_report.h"

namespace lockstep::inline internal {

/// Whose failure an error is.
enum class ErrorKind {
  kOwn,
  kOtherWorker  ///< the worker lost its connection to another, or another failed
};
/// By the type with which the message of an error begins, or by what Gloo tells Python programs.
ErrorKind error_kind_of(std::string_view message);

/// What a worker says of its failure.
struct ErrorReport {
  /// The first line, free of control characters.
  std::string message{};
  ErrorKind kind = ErrorKind::kOwn;
  /// 0: not given.
  int exit_code = 0;
  /// Where it is a crash of a program of Lockstep's.
  std::optional<CrashReport> crash{};
};

/// Reads a worker's error file (torchrun's error.json). All is empty when there is no such file or
/// it is something else.
ErrorReport read_error_file(const std::filesystem::path& file);

/// Writes what is known of the crash by now into the error file that tells of it: its message, the
/// lines of its frames, and the stack as text, where torchrun's readers look for it. A file that
/// cannot be written stays as it is.
void add_names(const std::filesystem::path& file, const CrashReport& crash);

/// The whole of a worker's error file as JSON in one line; nothing where there is none.
std::optional<std::string> error_document(const std::filesystem::path& file);

}  // namespace lockstep::inline internal
