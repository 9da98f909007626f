#include "launcher/command_line/program_beside.h"

#include <cerrno>
#include <system_error>

#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/process/find_program.h"

namespace lockstep::inline internal {

std::string program_beside(const std::string& name, const std::string& command) {
  std::error_code error;
  const std::filesystem::path program = program_folder() / name;
  if (!std::filesystem::exists(program, error)) {
    throw ProgramError(concat(command, ": there is no ", program.string(), "; build the target ",
                              name, ", or install Lockstep again"),
                       ProgramError::kNotFound);
  }
  return program.string();
}

std::filesystem::path program_folder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw SystemError("find this program (/proc/self/exe)", error.value());
  return self.parent_path();
}

void become_program(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(words.front().c_str(), pointers.data());
  throw exec_refused(words.front(), errno);
}

}  // namespace lockstep::inline internal
