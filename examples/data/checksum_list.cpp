#include "examples/data/checksum_list.h"

#include <algorithm>
#include <array>

#include <sodium.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace examples {
namespace {

using lockstep::concat;
using lockstep::CorruptFile;

constexpr std::size_t kChecksumDigits = 64;

bool is_checksum(std::string_view text) {
  return text.size() == kChecksumDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

std::string sha256_of(const void* data, std::size_t bytes) {
  std::array<unsigned char, crypto_hash_sha256_BYTES> hash{};
  crypto_hash_sha256(hash.data(), static_cast<const unsigned char*>(data), bytes);
  std::array<char, kChecksumDigits + 1> text{};
  sodium_bin2hex(text.data(), text.size(), hash.data(), hash.size());
  return text.data();
}

std::vector<FileChecksum> parse_checksum_list(std::string_view text, const std::string& list_name) {
  std::vector<FileChecksum> files;
  for (std::size_t line_number = 1; !text.empty(); ++line_number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    // sha256sum puts " *" before the name of a file that it read as binary.
    const std::string_view checksum = line.substr(0, std::min(kChecksumDigits, line.size()));
    const std::string_view rest = line.substr(checksum.size());
    const bool separated = rest.starts_with("  ") || rest.starts_with(" *");
    if (!is_checksum(checksum) || !separated || rest.size() == 2) {
      throw CorruptFile(concat("checksum list ", list_name, ", line ", line_number,
                               ": not a SHA-256 of ", kChecksumDigits,
                               " hexadecimal digits, two spaces and a file's name"));
    }
    files.push_back({std::string(checksum), std::string(rest.substr(2))});
  }
  return files;
}

}  // namespace examples
