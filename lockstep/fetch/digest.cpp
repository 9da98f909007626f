#include "lockstep/fetch/digest.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include <openssl/evp.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/os/readable_file.h"

namespace lockstep {

struct DigestContext {
  explicit DigestContext(DigestKind kind_of_digest)
      : kind(kind_of_digest), handle(EVP_MD_CTX_new(), EVP_MD_CTX_free) {}

  void check(int status, const char* operation) const {
    if (status == 1) return;
    throw Error(concat(operation, " of ", digest_name(kind),
                       " failed in OpenSSL; does its configuration allow this checksum?"));
  }

  DigestKind kind;
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> handle;
};

const char* digest_name(DigestKind kind) {
  return kind == DigestKind::kSha256 ? "SHA-256" : "MD5";
}

Digest::Digest(DigestKind kind) : context_(std::make_unique<DigestContext>(kind)) {
  const EVP_MD* const algorithm = kind == DigestKind::kSha256 ? EVP_sha256() : EVP_md5();
  const bool made = context_->handle != nullptr;
  context_->check(made ? EVP_DigestInit_ex(context_->handle.get(), algorithm, nullptr) : 0,
                  "beginning");
}

Digest::~Digest() = default;

void Digest::update(const void* data, std::size_t bytes) {
  context_->check(EVP_DigestUpdate(context_->handle.get(), data, bytes), "adding to a checksum");
}

std::string Digest::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned int count = 0;
  context_->check(EVP_DigestFinal_ex(context_->handle.get(), bytes.data(), &count), "the end");
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

std::string digest_of_file(DigestKind kind, const std::filesystem::path& path) {
  constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
  const ReadableFile file(path);
  Digest digest(kind);
  std::vector<char> piece(kPieceBytes);
  for (std::uint64_t offset = 0; offset < file.size_bytes();) {
    const auto bytes =
        static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, file.size_bytes() - offset));
    file.read(offset, piece.data(), bytes);
    digest.update(piece.data(), bytes);
    offset += bytes;
  }
  return digest.finish();
}

}  // namespace lockstep
