#pragma once

#include <cstring>

#include "lockstep/comm/kernels/kernel_table.h"
#include "lockstep/comm/kernels/kernel_vectors.h"

/// The loop of a sum of squares. As kernel_vectors.h: local to each file compiled for one
/// instruction set.
namespace lockstep::inline internal {
namespace {

/// Groups of kSquareLanes elements, each lane a double of its own.
template <class Format>
[[gnu::noinline]] void add_square_groups(const std::byte* values, std::size_t groups,
                                         double* lanes) {
  using Doubles = Vector<double>;
  using Number = decltype(typename Format::Lanes{}[0] + 0);
  using Packed = typename Format::Packed;
  constexpr std::size_t kWidth = sizeof(Doubles) / sizeof(double);
  using Numbers = Vector<Number, kWidth * sizeof(Number)>;
  constexpr std::size_t kSums = kSquareLanes / kWidth;
  constexpr std::size_t kVectors = kSquareLanes / kLanes<Format>;

  Doubles sums[kSums];
#pragma GCC unroll 32
  for (std::size_t j = 0; j < kSums; ++j) {
    sums[j] = load<Doubles>(reinterpret_cast<const std::byte*>(lanes + j * kWidth));
  }
  for (; groups > 0; --groups, values += kSquareLanes * Format::kElementBytes) {
    const std::byte* numbers = values;
    alignas(kCacheLineBytes) std::byte unpacked[kSquareLanes * sizeof(Number)];
    if constexpr (sizeof(Number) != Format::kElementBytes) {
#pragma GCC unroll 16
      for (std::size_t v = 0; v < kVectors; ++v) {
        store(unpacked + v * kVectorBytes,
              Format::unpack(load<Packed>(values + v * sizeof(Packed))));
      }
      numbers = unpacked;
    }
#pragma GCC unroll 32
    for (std::size_t j = 0; j < kSums; ++j) {
      const Doubles x =
          __builtin_convertvector(load<Numbers>(numbers + j * sizeof(Numbers)), Doubles);
      sums[j] += x * x;
    }
  }
#pragma GCC unroll 32
  for (std::size_t j = 0; j < kSums; ++j) {
    store(reinterpret_cast<std::byte*>(lanes + j * kWidth), sums[j]);
  }
}

template <class Format>
void add_squares(const std::byte* values, std::size_t elements, double* lanes) {
  const std::size_t groups = elements / kSquareLanes;
  add_square_groups<Format>(values, groups, lanes);
  const std::size_t rest = elements % kSquareLanes;
  if (rest == 0) return;
  std::byte last_group[kSquareLanes * Format::kElementBytes] = {};  // The square of 0 adds nothing.
  std::memcpy(last_group, values + groups * sizeof last_group, rest * Format::kElementBytes);
  add_square_groups<Format>(last_group, 1, lanes);
}

inline SquaresKernel find_squares(Element element) {
  switch (element) {
    case Element::kFloat32:
      return add_squares<Plain<float>>;
    case Element::kFloat64:
      return add_squares<Plain<double>>;
    case Element::kFloat16:
      return add_squares<Float16>;
    case Element::kBFloat16:
      return add_squares<BFloat16>;
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace lockstep::inline internal
