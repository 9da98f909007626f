#include "lockstep/cli/program_beside.h"

#include <filesystem>
#include <system_error>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/os/find_program.h"

namespace lockstep {

std::string program_beside(const std::string& name, const std::string& command) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw SystemError("find this program (/proc/self/exe)", error.value());
  const std::filesystem::path program = self.parent_path() / name;
  if (!std::filesystem::exists(program, error)) {
    throw ProgramError(concat(command, ": there is no ", program.string(), "; build the target ",
                              name, ", or install Lockstep again"),
                       ProgramError::kNotFound);
  }
  return program.string();
}

}  // namespace lockstep
