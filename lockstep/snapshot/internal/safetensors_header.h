#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

namespace lockstep::inline internal {

/// One tensor of a safetensors file; its bytes are counted from the end of the header.
struct SafetensorsEntry {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> shape = {};
  std::uint64_t begin_bytes = 0;
  std::uint64_t end_bytes = 0;
};

/// The JSON that a safetensors file begins with, as a value.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  ///< In the order of the text.
  std::map<std::string, std::string> metadata;
};

/// What a header of n bytes and the tensors that it describes take, beside their data, is at most
/// kAnyHeaderBytes + n * kHeaderBytesAByte.
inline constexpr std::uint64_t kHeaderBytesAByte = 64;
inline constexpr std::uint64_t kAnyHeaderBytes = std::uint64_t{4} << 20;
/// What a file must not exceed: the limit of Hugging Face's reader.
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

/// Whether the format has the dtype.
bool is_safetensors_dtype(c10::ScalarType dtype);

/// Gives each entry, of which name, dtype and shape are set, its place: one behind the other
/// without a gap, larger elements first, so that each lies at a multiple of its element's size.
void place_safetensors(std::vector<SafetensorsEntry>& tensors);

/// Padded with spaces to a multiple of 8 bytes. Errors: UsageError for names that are no UTF-8.
std::string safetensors_header_text(const SafetensorsHeader& header);

/// Trusts nothing: every tensor has the bytes that its dtype and shape take, and all together cover
/// the `data_bytes` behind the header, each byte once. `source`: for errors, "read x.safetensors".
/// Errors: CorruptFile; UsageError for a dtype that LibTorch does not have.
SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                           const std::string& source);

}  // namespace lockstep::inline internal
