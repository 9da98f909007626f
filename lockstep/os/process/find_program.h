#pragma once

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::inline internal {

/// A program cannot be started. Exit codes are the shell's: 127 not found, 126 not executable.
class ProgramError : public Error {
 public:
  static constexpr int kNotFound = 127;
  static constexpr int kNotExecutable = 126;

  ProgramError(const std::string& message, int exit_code) : Error(message), exit_code_(exit_code) {}
  int exit_code() const noexcept override { return exit_code_; }

 private:
  int exit_code_;
};

/// Finds the file that a shell would execute for `name`: `name` itself if it contains a '/', else
/// the first executable file of that name in the directories of `search_path` (separated by ':', as
/// in PATH).
/// Errors: ProgramError if there is none, if it is a directory, or if it may not be executed.
std::string find_program(const std::string& name, const std::string& search_path);
/// Finds it in PATH.
std::string find_program(const std::string& name);
/// The Python interpreter: PYTHON_EXEC, else python3.
std::string find_python();

/// The error for a file that find_program() found and the system refused to execute.
ProgramError exec_refused(const std::string& path, int errno_value);

}  // namespace lockstep::inline internal
