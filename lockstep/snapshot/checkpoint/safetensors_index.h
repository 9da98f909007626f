#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::inline internal {

/// Which file of a folder has which tensor: model.safetensors.index.json.
struct SafetensorsIndex {
  std::uint64_t total_bytes = 0;                           ///< only written
  std::vector<std::pair<std::string, std::string>> files;  ///< by tensor, in the text's order
};

/// What n bytes of it are read into takes at most kAnyIndexBytes + n * kIndexBytesAByte.
inline constexpr std::uint64_t kIndexBytesAByte = 64;
inline constexpr std::uint64_t kAnyIndexBytes = std::uint64_t{1} << 20;

/// Files are those of the folder: names that lead out of it are refused. `source`: for errors.
/// Errors: CorruptFile.
SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& source);

std::string safetensors_index_text(const SafetensorsIndex& index);

}  // namespace lockstep::inline internal
