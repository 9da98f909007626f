#include "lockstep/snapshot/internal/checksum.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <utility>
#include <vector>

#include <xxhash.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

constexpr std::string_view kCommentPrefix = "lockstep-xxh3:";
constexpr std::size_t kHexDigits = 32;
constexpr std::size_t kCommentBytes = kCommentPrefix.size() + kHexDigits;
constexpr std::size_t kLengthBytes = 2;
/// Signature to comment length, of the record that ends a zip archive.
constexpr std::size_t kZipEndBytes = 22;
constexpr std::string_view kZipEndSignature = "PK\x05\x06";
/// Large enough to keep a disk busy, small enough to stay in the processor's cache.
constexpr std::size_t kChunkBytes = 1 << 20;

std::string digits_of(const XXH128_hash_t& value) {
  char digits[kHexDigits + 1];
  std::snprintf(digits, sizeof(digits), "%016llx%016llx",
                static_cast<unsigned long long>(value.high64),
                static_cast<unsigned long long>(value.low64));
  return digits;
}

}  // namespace

struct ChecksumHash {
  ChecksumHash() { XXH3_128bits_reset(&state); }
  void update(const void* data, std::size_t bytes) { XXH3_128bits_update(&state, data, bytes); }
  std::string digits() const { return digits_of(XXH3_128bits_digest(&state)); }
  std::string comment() const { return concat(kCommentPrefix, digits()); }
  XXH3_state_t state;
};

namespace {

void update_from(const ReadableFile& file, std::uint64_t size_bytes, ChecksumHash& hash) {
  std::vector<char> chunk(kChunkBytes);
  for (std::uint64_t offset = 0; offset < size_bytes;) {
    const std::size_t bytes = std::min<std::uint64_t>(kChunkBytes, size_bytes - offset);
    file.read(offset, chunk.data(), bytes);
    hash.update(chunk.data(), bytes);
    offset += bytes;
  }
}

}  // namespace

ChecksumWriter::ChecksumWriter(AtomicFile& file)
    : file_(file), hash_(std::make_unique<ChecksumHash>()) {}
ChecksumWriter::~ChecksumWriter() = default;

void ChecksumWriter::put(const void* data, std::size_t bytes) {
  hash_->update(data, bytes);
  file_.write(data, bytes);
  size_bytes_ += bytes;
}

void ChecksumWriter::write(const void* data, std::size_t bytes) {
  const char* begin = static_cast<const char*>(data);
  if (bytes >= kLengthBytes) {
    put(held_back_.data(), held_back_.size());
    put(begin, bytes - kLengthBytes);
    held_back_.assign(begin + bytes - kLengthBytes, kLengthBytes);
  } else if (bytes > 0) {
    held_back_.append(begin, bytes);
    const std::size_t surplus = held_back_.size() - std::min(held_back_.size(), kLengthBytes);
    put(held_back_.data(), surplus);
    held_back_.erase(0, surplus);
  }
}

FileDigest ChecksumWriter::finish() {
  LOCKSTEP_ASSERT(held_back_ == std::string(kLengthBytes, '\0'));
  const char length[kLengthBytes] = {static_cast<char>(kCommentBytes), 0};
  put(length, kLengthBytes);
  const std::string comment = hash_->comment();
  put(comment.data(), comment.size());
  held_back_.clear();
  return {.size_bytes = size_bytes_, .xxh3 = hash_->digits()};
}

HashedFile::HashedFile(std::filesystem::path path)
    : file_(std::move(path)), hash_(std::make_unique<ChecksumHash>()) {}
HashedFile::~HashedFile() = default;

void HashedFile::write(const void* data, std::size_t bytes) {
  hash_->update(data, bytes);
  file_.write(data, bytes);
  size_bytes_ += bytes;
}

FileDigest HashedFile::commit() {
  file_.commit();
  return {.size_bytes = size_bytes_, .xxh3 = hash_->digits()};
}

std::string xxh3_digits(std::string_view bytes) {
  return digits_of(XXH3_128bits(bytes.data(), bytes.size()));
}

FileDigest digest_of(const ReadableFile& file) {
  const auto hash = std::make_unique<ChecksumHash>();
  update_from(file, file.size_bytes(), *hash);
  return {.size_bytes = file.size_bytes(), .xxh3 = hash->digits()};
}

bool verify_checksum(const ReadableFile& file) {
  const std::uint64_t size = file.size_bytes();
  std::string end(std::min<std::uint64_t>(size, kCommentBytes), '\0');
  file.read(size - end.size(), end.data(), end.size());
  if (!end.starts_with(kCommentPrefix)) {
    const std::string_view zip_end =
        std::string_view(end).substr(end.size() - std::min(end.size(), kZipEndBytes));
    if (zip_end.starts_with(kZipEndSignature) && zip_end.ends_with(std::string(2, '\0'))) {
      return false;
    }
    throw CorruptFile(concat("verify ", file.path(),
                             ": no checksum at its end; it is truncated, "
                             "damaged or not a snapshot: use another copy or an older snapshot"));
  }
  const auto hash = std::make_unique<ChecksumHash>();
  update_from(file, size - kCommentBytes, *hash);
  if (hash->comment() != end) {
    throw CorruptFile(concat("verify ", file.path(),
                             ": its checksum does not match; it was damaged after it was written"));
  }
  return true;
}

std::uint64_t hash_bytes(const void* data, std::size_t bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

}  // namespace lockstep::inline internal
