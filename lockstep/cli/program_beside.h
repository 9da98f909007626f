#pragma once

#include <string>

namespace lockstep {

/// The path of `name`, a program that is installed beside this one: what loads more than `lockstep`
/// may, which starts in a millisecond. `command` is for the message. Errors: ProgramError when it
/// is not there.
std::string program_beside(const std::string& name, const std::string& command);

}  // namespace lockstep
