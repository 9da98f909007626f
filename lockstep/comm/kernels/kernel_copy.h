#pragma once

#include <cstring>

#include "lockstep/comm/kernels/kernel_table.h"
#include "lockstep/comm/kernels/kernel_vectors.h"

/// The copy past the caches. As kernel_vectors.h: local to each file compiled for one
/// instruction set.
namespace lockstep::inline internal {
namespace {

inline void copy_non_temporal(std::byte* target, const std::byte* source, std::size_t bytes) {
  const std::size_t to_line = -reinterpret_cast<std::uintptr_t>(target) % kCacheLineBytes;
  const std::size_t head = to_line < bytes ? to_line : bytes;
  std::memcpy(target, source, head);
  constexpr std::size_t kVectors = 256 / kVectorBytes;
  std::size_t i = head;
  for (; bytes - i >= 256; i += 256) {
    Vector<std::uint8_t> vectors[kVectors];
#pragma GCC unroll 16
    for (std::size_t v = 0; v < kVectors; ++v) {
      vectors[v] = load<Vector<std::uint8_t>>(source + i + v * kVectorBytes);
    }
#pragma GCC unroll 16
    for (std::size_t v = 0; v < kVectors; ++v) stream(target + i + v * kVectorBytes, vectors[v]);
  }
  std::memcpy(target + i, source + i, bytes - i);
  finish_streams();
}

}  // namespace
}  // namespace lockstep::inline internal
