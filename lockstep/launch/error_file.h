#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

/// The first line of the message in a worker's error file (torchrun's error.json), free of control
/// characters; empty when there is no such file or it is something else.
std::string read_error_message(const std::filesystem::path& file);

}  // namespace lockstep
