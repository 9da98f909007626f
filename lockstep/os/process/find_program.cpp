#include "lockstep/os/process/find_program.h"

#include <cerrno>
#include <sstream>
#include <system_error>

#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"

namespace lockstep::inline internal {
namespace {

enum class Kind { kMissing, kDirectory, kNotExecutable, kProgram };

Kind kind_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return Kind::kMissing;
  if (S_ISDIR(status.st_mode)) return Kind::kDirectory;
  return ::access(path.c_str(), X_OK) == 0 ? Kind::kProgram : Kind::kNotExecutable;
}

std::string check_path(const std::string& path) {
  switch (kind_of(path)) {
    case Kind::kMissing:
      throw ProgramError(concat("no such program: ", path, "; check the path"),
                         ProgramError::kNotFound);
    case Kind::kDirectory:
      throw ProgramError(concat("not a program: ", path, " is a directory"),
                         ProgramError::kNotExecutable);
    case Kind::kNotExecutable:
      throw ProgramError(
          concat("permission denied: ", path, " is not executable; try chmod +x ", path),
          ProgramError::kNotExecutable);
    case Kind::kProgram:
      break;
  }
  return path;
}

}  // namespace

std::string find_program(const std::string& name, const std::string& search_path) {
  if (name.find('/') != std::string::npos) return check_path(name);
  std::istringstream directories(search_path);
  for (std::string directory; !name.empty() && std::getline(directories, directory, ':');) {
    std::string path = concat(directory.empty() ? "." : directory, "/", name);
    if (kind_of(path) == Kind::kProgram) return path;
  }
  const bool here = kind_of("./" + name) == Kind::kProgram;
  throw ProgramError(
      concat("no such program: '", name, "' is in no directory of PATH",
             here ? concat("; did you mean ./", name, "?") : "; give its path, as in ./my_program"),
      ProgramError::kNotFound);
}

std::string find_program(const std::string& name) {
  return find_program(name, env::text(env::kPath).value_or("/usr/local/bin:/usr/bin:/bin"));
}

std::string find_python() {
  return find_program(env::text(env::kPythonExec).value_or("python3"));
}

ProgramError exec_refused(const std::string& path, int errno_value) {
  std::string advice;
  int exit_code = ProgramError::kNotExecutable;
  if (errno_value == ENOEXEC) {
    advice =
        "; it is no program of this machine's kind, or a script without a first line such as "
        "#!/bin/sh";
  } else if (errno_value == ENOENT) {
    // The file is there, so what is missing is what it needs to run.
    advice = "; the interpreter that its first line (#!) or its ELF header names is missing";
    exit_code = ProgramError::kNotFound;
  }
  return ProgramError(
      concat("cannot execute ", path, ": ", std::generic_category().message(errno_value), advice),
      exit_code);
}

}  // namespace lockstep::inline internal
