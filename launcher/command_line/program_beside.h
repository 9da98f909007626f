#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// The path of `name`, a program that is installed beside this one: what loads more than `lockstep`
/// may, which starts in a millisecond. `command` is for the message. Errors: ProgramError when it
/// is not there.
std::string program_beside(const std::string& name, const std::string& command);

/// Where this program lies. Errors: SystemError.
std::filesystem::path program_folder();

/// Becomes another program, with its path as the first word. Errors: ProgramError.
[[noreturn]] void become_program(std::vector<std::string> words);

}  // namespace lockstep::inline internal
