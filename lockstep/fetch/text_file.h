#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

/// The whole file. Errors: SystemError or UsageError naming it.
std::string read_text_file(const std::filesystem::path& path);

/// Writes a new file, bytes as they are. Errors: SystemError naming it.
void write_text_file(const std::filesystem::path& path, const std::string& content);

}  // namespace lockstep
