#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

namespace lockstep {

enum class DigestKind { kSha256, kMd5 };

/// "SHA-256" or "MD5".
const char* digest_name(DigestKind kind);

struct DigestContext;

/// A checksum of bytes that come in pieces. Errors: Error when OpenSSL refuses the kind, as a
/// restricted configuration does with MD5.
class Digest {
 public:
  explicit Digest(DigestKind kind);
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void update(const void* data, std::size_t bytes);

  /// Lower-case hexadecimal digits. To be called once, at the end.
  std::string finish();

 private:
  std::unique_ptr<DigestContext> context_;
};

/// Of a whole file. Errors: SystemError or UsageError naming the path when it cannot be read.
std::string digest_of_file(DigestKind kind, const std::filesystem::path& path);

}  // namespace lockstep
