#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace examples {

/// One file of a checksum list.
struct FileChecksum {
  /// SHA-256, 64 lower-case hexadecimal digits.
  std::string sha256;
  /// Relative to the list's folder.
  std::string name;
};

/// The SHA-256 of `bytes` bytes, as a list has it.
std::string sha256_of(const void* data, std::size_t bytes);

/// What a folder's checksum list is called.
inline constexpr const char* kChecksumListName = "SHA256SUMS";

/// A list as `sha256sum` writes it: one line a file, the checksum, two spaces and the name.
/// Errors: CorruptFile naming `list_name`, the line and what is wrong with it.
std::vector<FileChecksum> parse_checksum_list(std::string_view text, const std::string& list_name);

}  // namespace examples
