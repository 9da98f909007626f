#include "examples/data/sha256.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

namespace examples {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> kSha256Constants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian_word(const unsigned char* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | std::uint32_t{bytes[3]};
}

}  // namespace

void Sha256::take_block(const unsigned char* block) {
  std::array<std::uint32_t, 64> words;
  for (std::size_t i = 0; i < 16; ++i) words[i] = big_endian_word(block + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t early = words[i - 15];
    const std::uint32_t late = words[i - 2];
    const std::uint32_t s0 = std::rotr(early, 7) ^ std::rotr(early, 18) ^ (early >> 3);
    const std::uint32_t s1 = std::rotr(late, 17) ^ std::rotr(late, 19) ^ (late >> 10);
    words[i] = words[i - 16] + s0 + words[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t choice = (e & f) ^ (~e & g);
    const std::uint32_t first = h + s1 + choice + kSha256Constants[i] + words[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + s0 + majority;
  }
  const std::array<std::uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += added[i];
}

void Sha256::update(const void* data, std::size_t bytes) {
  const auto* next = static_cast<const unsigned char*>(data);
  total_bytes_ += bytes;
  while (bytes > 0) {
    if (buffered_bytes_ == 0 && bytes >= kBlockBytes) {
      take_block(next);
      next += kBlockBytes;
      bytes -= kBlockBytes;
      continue;
    }
    const std::size_t taken = std::min(bytes, kBlockBytes - buffered_bytes_);
    std::memcpy(buffer_.data() + buffered_bytes_, next, taken);
    next += taken;
    bytes -= taken;
    buffered_bytes_ += taken;
    if (buffered_bytes_ == kBlockBytes) {
      take_block(buffer_.data());
      buffered_bytes_ = 0;
    }
  }
}

std::string Sha256::finish() {
  const std::uint64_t total_bits = total_bytes_ * 8;
  // A one bit, then zeros up to eight bytes before the end of a block, then the length.
  constexpr std::size_t kLengthBytes = 8;
  const std::size_t used = buffered_bytes_ + 1 + kLengthBytes;
  const std::size_t zeros = (kBlockBytes - used % kBlockBytes) % kBlockBytes;
  std::array<unsigned char, 2 * kBlockBytes> padding{0x80};
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    padding[1 + zeros + i] = static_cast<unsigned char>(total_bits >> (56 - 8 * i));
  }
  update(padding.data(), 1 + zeros + kLengthBytes);
  std::string text;
  for (const std::uint32_t word : state_) {
    char digits[9];
    std::snprintf(digits, sizeof digits, "%08x", word);
    text += digits;
  }
  return text;
}

}  // namespace examples
