#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "diagnose/verdict/crash_report.h"

namespace lockstep::inline internal {

/// Whether an error is the worker's own.
enum class ErrorKind {
  kOwn,
  kOtherWorker  ///< the worker lost its connection to another, or another failed
};
/// Decides by the type at the start of a message, or by Gloo's messages in Python programs.
ErrorKind error_kind_of(std::string_view message);

/// A worker's report of its failure.
struct ErrorReport {
  /// First line, without control characters.
  std::string message{};
  ErrorKind kind = ErrorKind::kOwn;
  /// 0: unknown.
  int exit_code = 0;
  /// If it is a crash of a Lockstep program.
  std::optional<CrashReport> crash{};
};

/// Reads a worker's error file (torchrun's error.json). Empty if there is none or its format is
/// unknown.
ErrorReport read_error_file(const std::filesystem::path& file);

/// Adds what is now known about the crash to its error file: the message, the frames' lines, and
/// the stack as text, where torchrun's readers expect it. Leaves a file that cannot be written
/// unchanged.
void add_names(const std::filesystem::path& file, const CrashReport& crash);

/// A worker's whole error file as one line of JSON; empty if there is none.
std::optional<std::string> error_document(const std::filesystem::path& file);

}  // namespace lockstep::inline internal
