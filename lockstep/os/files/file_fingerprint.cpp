#include "lockstep/os/files/file_fingerprint.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/os/files/readable_file.h"

namespace lockstep::inline internal {
namespace {

// FNV-1a, of words for speed.
class Hash {
 public:
  void add(const char* bytes, std::size_t count) {
    for (std::size_t i = 0; i < count; i += 8) {
      std::uint64_t word = 0;
      for (std::size_t j = i; j < std::min(i + 8, count); ++j) {
        word = word << 8 | static_cast<unsigned char>(bytes[j]);
      }
      hash_ = (hash_ ^ word) * 1'099'511'628'211ULL;
      hash_ ^= hash_ >> 29;  // Words, unlike bytes, would leave the lower bits as they are.
    }
    count_ += count;
  }
  std::string text() const {
    if (count_ == 0) return "";
    char digits[17];
    std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(hash_));
    return digits;
  }

 private:
  std::uint64_t hash_ = 14'695'981'039'346'656'037ULL;
  std::uint64_t count_ = 0;
};

constexpr std::uint64_t kPartBytes = 64 * 1024;

void add_part(const ReadableFile& file, std::uint64_t begin, Hash& hash) {
  std::vector<char> part(std::min<std::uint64_t>(kPartBytes, file.size_bytes() - begin));
  file.read(begin, part.data(), part.size());
  hash.add(part.data(), part.size());
}

}  // namespace

std::string file_fingerprint(const std::string& path) try {
  const ReadableFile file(path);
  Hash hash;
  for (std::uint64_t begin = 0; begin < file.size_bytes(); begin += kPartBytes) {
    add_part(file, begin, hash);
  }
  return hash.text();
} catch (const Error&) {
  return "";
}

std::string quick_fingerprint(const std::string& path) try {
  const ReadableFile file(path);
  const std::uint64_t size = file.size_bytes();
  if (size == 0) return "";
  Hash hash;
  const std::string length = std::to_string(size);
  hash.add(length.data(), length.size());
  add_part(file, 0, hash);
  if (size > kPartBytes) add_part(file, std::max(size - kPartBytes, kPartBytes), hash);
  return hash.text();
} catch (const Error&) {
  return "";
}

}  // namespace lockstep::inline internal
