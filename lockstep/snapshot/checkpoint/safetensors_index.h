#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::inline internal {

/// The file model.safetensors.index.json: which file of a directory has which tensor.
struct SafetensorsIndex {
  std::uint64_t total_bytes = 0;                           ///< only written
  std::vector<std::pair<std::string, std::string>> files;  ///< tensor and file, in the text's order
};

/// Parsing n bytes takes at most kAnyIndexBytes + n * kIndexBytesAByte bytes.
inline constexpr std::uint64_t kIndexBytesAByte = 64;
inline constexpr std::uint64_t kAnyIndexBytes = std::uint64_t{1} << 20;

/// Parses an index; refuses names of files outside of the directory.
/// `source`: for error messages.
/// Errors: CorruptFile.
SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& source);

/// The text of an index.
std::string safetensors_index_text(const SafetensorsIndex& index);

}  // namespace lockstep::inline internal
