#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// Path of the program `name`, installed beside this one. Such programs load LibTorch, which
/// `lockstep` must not, because it starts in a millisecond. `command` is for the message.
/// Errors: ProgramError if it does not exist.
std::string program_beside(const std::string& name, const std::string& command);

/// Folder of this program.
/// Errors: SystemError.
std::filesystem::path program_folder();

/// Replaces this process by another program (exec); the first word is its path.
/// Errors: ProgramError.
[[noreturn]] void become_program(std::vector<std::string> words);

}  // namespace lockstep::inline internal
