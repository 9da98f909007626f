#include "lockstep/os/file_fingerprint.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <vector>

namespace lockstep {
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

constexpr std::size_t kPartBytes = 64 * 1024;

bool add_part(std::ifstream& file, Hash& hash) {
  std::vector<char> part(kPartBytes);
  file.read(part.data(), static_cast<std::streamsize>(part.size()));
  hash.add(part.data(), static_cast<std::size_t>(file.gcount()));
  return file.good();
}

}  // namespace

std::string file_fingerprint(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Hash hash;
  while (add_part(file, hash)) {
  }
  return hash.text();
}

std::string quick_fingerprint(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file.tellg();
  if (size <= 0) return "";
  constexpr auto kPart = static_cast<std::streamoff>(kPartBytes);
  Hash hash;
  const std::string length = std::to_string(size);
  hash.add(length.data(), length.size());
  file.seekg(0);
  add_part(file, hash);
  if (size > kPart) {
    file.clear();
    file.seekg(std::max(size - kPart, kPart));
    add_part(file, hash);
  }
  return hash.text();
}

}  // namespace lockstep
