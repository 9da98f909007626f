#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace examples {

/// SHA-256 (FIPS 180-4), to tell whether files are what they were. The examples link no
/// cryptography library, which would be one more thing to install.
class Sha256 {
 public:
  void update(const void* data, std::size_t bytes);

  /// 64 lower-case hexadecimal digits. To be called once, at the end.
  std::string finish();

 private:
  static constexpr std::size_t kBlockBytes = 64;

  void take_block(const unsigned char* block);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, kBlockBytes> buffer_{};
  std::size_t buffered_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace examples
