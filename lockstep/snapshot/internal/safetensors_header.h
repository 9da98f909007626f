#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

namespace lockstep::inline internal {

/// A tensor of a safetensors file; byte positions count from the end of the header.
struct SafetensorsEntry {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> shape = {};
  std::uint64_t begin_bytes = 0;
  std::uint64_t end_bytes = 0;
};

/// The JSON at the start of a safetensors file.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  ///< in the order of the text
  std::map<std::string, std::string> metadata;
};

/// Parsing a header of n bytes, and its tensors without their data, takes at most kAnyHeaderBytes +
/// n * kHeaderBytesAByte bytes.
inline constexpr std::uint64_t kHeaderBytesAByte = 64;
inline constexpr std::uint64_t kAnyHeaderBytes = std::uint64_t{4} << 20;
/// Largest header in bytes: the limit of Hugging Face's reader.
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

/// Whether the format supports the dtype.
bool is_safetensors_dtype(c10::ScalarType dtype);

/// Sets the byte positions of entries with name, dtype and shape: without gaps, larger elements
/// first, so that each tensor is aligned to its element size.
void place_safetensors(std::vector<SafetensorsEntry>& tensors);

/// The text of a header, padded with spaces to a multiple of 8 bytes.
/// Errors: UsageError for names that are not UTF-8, and for a tensor "__metadata__".
std::string safetensors_header_text(const SafetensorsHeader& header);

/// Parses a header. Trusts nothing: every tensor has the bytes that its dtype and shape need, at
/// most kMaxDimensions dimensions, and together they cover the `data_bytes` after the header
/// exactly once. `source`: for error messages, "read x.safetensors". Errors: CorruptFile;
/// UsageError for a dtype that LibTorch does not have.
SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                           const std::string& source);

}  // namespace lockstep::inline internal
