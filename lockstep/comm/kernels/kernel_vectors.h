#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/// Vectors of the widest kind that this file's compiler flags allow, and how the elements of a
/// buffer become their lanes. Included by the files compiled for one instruction set each, and by
/// them alone. All of it is local to the file that includes it, for the reason in kernel_table.h.
namespace lockstep::inline internal {
namespace {

#if defined(__AVX512F__)
constexpr std::size_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr std::size_t kVectorBytes = 32;
#else
constexpr std::size_t kVectorBytes = 16;
#endif

template <typename Lane, std::size_t kBytes = kVectorBytes>
struct VectorOf {
  typedef Lane type __attribute__((vector_size(kBytes)));
};
template <typename Lane, std::size_t kBytes = kVectorBytes>
using Vector = typename VectorOf<Lane, kBytes>::type;

using Float = Vector<float>;
using Bits = Vector<std::int32_t>;  ///< of a Float; signed, which compares in one instruction
using HalfBits = Vector<std::uint16_t, kVectorBytes / 2>;  ///< as many as a Float has lanes

using Words = Vector<std::uint32_t>;

inline Words widen(HalfBits half) {
#if defined(__AVX512F__)
  return (Words)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)half);
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepu16_epi32((__m128i)half);
#elif defined(__x86_64__)
  return (Words)_mm_unpacklo_epi16(_mm_cvtsi64_si128((long long)half), _mm_setzero_si128());
#else
  return __builtin_convertvector(half, Words);
#endif
}

/// Of words below 1 << 16.
inline HalfBits narrow(Words words) {
#if defined(__AVX512F__)
  return (HalfBits)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)words);
#elif defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32((__m256i)words, (__m256i)words);
  return (HalfBits)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b1000));
#elif defined(__x86_64__)
  // SSE2 packs signed numbers only.
  const __m128i extended = _mm_srai_epi32(_mm_slli_epi32((__m128i)words, 16), 16);
  return (HalfBits)_mm_cvtsi128_si64(_mm_packs_epi32(extended, extended));
#else
  return __builtin_convertvector(words, HalfBits);
#endif
}

/// A format is a kind of element: Packed is a vector as it lies in memory, Lanes the same elements
/// as they are computed with.
template <typename T>
struct Plain {
  static constexpr std::size_t kElementBytes = sizeof(T);
  using Packed = Vector<T>;
  using Lanes = Vector<T>;
  static Lanes unpack(Packed packed) { return packed; }
  static Packed pack(Lanes lanes) { return lanes; }
};

/// Any byte but 0 is true; what comes out is 0 or 1.
struct Bool {
  static constexpr std::size_t kElementBytes = 1;
  using Packed = Vector<std::uint8_t>;
  using Lanes = Vector<std::uint8_t>;
  static Lanes unpack(Packed packed) { return (Lanes)(packed != 0) & 1; }
  static Packed pack(Lanes lanes) { return lanes; }
};

/// The upper half of a float32; rounds to nearest even, keeps a NaN's sign and upper bits.
struct BFloat16 {
  static constexpr std::size_t kElementBytes = 2;
  using Packed = HalfBits;
  using Lanes = Float;
  static Lanes unpack(Packed packed) { return (Float)(widen(packed) << 16); }
  static Packed pack(Lanes lanes) {
    const Words bits = (Words)lanes;
    const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Words quiet_nan = (bits >> 16) | 0x40;
    return narrow(lanes == lanes ? rounded : quiet_nan);
  }
};

/// IEEE binary16; rounds to nearest even, beyond 65519 to infinity; a NaN turns quiet and keeps its
/// sign and upper bits.
struct Float16 {
  static constexpr std::size_t kElementBytes = 2;
  using Packed = HalfBits;
  using Lanes = Float;

#if defined(__AVX512F__)
  // With a mask of all lanes: g++ 12 warns of the header of the forms without one.
  static constexpr __mmask16 kAll = 0xffff;
  static Lanes unpack(Packed packed) {
    return (Float)_mm512_maskz_cvtph_ps(kAll, (__m256i)packed);
  }
  static Packed pack(Lanes lanes) {
    return (HalfBits)_mm512_maskz_cvtps_ph(kAll, (__m512)lanes, _MM_FROUND_TO_NEAREST_INT);
  }
#elif defined(__F16C__) && defined(__AVX2__)
  static Lanes unpack(Packed packed) {
    return (Float)_mm256_cvtph_ps((__m128i)packed);
  }
  static Packed pack(Lanes lanes) {
    return (HalfBits)_mm256_cvtps_ph((__m256)lanes, _MM_FROUND_TO_NEAREST_INT);
  }
#else
  // In the bits of a float32: the exponent is 112 more than in a float16, the fraction 13 bits
  // longer. Subnormal numbers are left to an addition, which aligns and rounds them.
  static constexpr std::int32_t kExponentShift = 112 << 23;

  static Lanes unpack(Packed packed) {
    const Bits bits = (Bits)widen(packed);
    const Bits magnitude = (bits & 0x7fff) << 13;
    const Bits normal = magnitude + kExponentShift;
    const Bits smallest_normal = Bits{} + (113 << 23);
    const Bits subnormal = (Bits)((Float)(magnitude + smallest_normal) - (Float)smallest_normal);
    const Bits infinity = Bits{} + (0x7c00 << 13);
    const Bits special = (normal + kExponentShift) | ((magnitude > infinity) & (1 << 22));
    const Bits finite = magnitude < (1 << 23) ? subnormal : normal;
    return (Float)((magnitude >= infinity ? special : finite) | ((bits & 0x8000) << 16));
  }

  static Packed pack(Lanes lanes) {
    const Bits bits = (Bits)lanes;
    const Bits magnitude = bits & 0x7fffffff;
    const Bits odd = (magnitude >> 13) & 1;
    const Bits rounded = (magnitude - kExponentShift + 0xfff + odd) >> 13;
    const Bits normal = rounded < 0x7c00 ? rounded : Bits{} + 0x7c00;
    // The last bit of a float32 just above 0.5 weighs what that of a subnormal float16 does.
    const Float half = Float{} + 0.5F;
    const Bits subnormal = (Bits)((Float)magnitude + half) - (Bits)half;
    const Bits quiet_nan = ((magnitude >> 13) & 0x3ff) | 0x7e00;
    const Bits number = magnitude < (113 << 23) ? subnormal : normal;
    const Bits result = magnitude > 0x7f800000 ? quiet_nan : number;
    return narrow((Words)(result | ((bits >> 16) & 0x8000)));
  }
#endif
};

template <class Format>
constexpr std::size_t kLanes = sizeof(typename Format::Packed) / Format::kElementBytes;

/// The same vector at any address; plain loads and stores of it, where g++ 12 makes two of memcpy.
template <class Packed>
struct Unaligned {
  typedef Packed type __attribute__((aligned(1), may_alias));
};

template <class Packed>
Packed load(const std::byte* source) {
  return *reinterpret_cast<const typename Unaligned<Packed>::type*>(source);
}

template <class Packed>
void store(std::byte* target, Packed packed) {
  *reinterpret_cast<typename Unaligned<Packed>::type*>(target) = packed;
}

#if !defined(__AVX512F__)
/// Fewer bytes than a vector has, without the call that memcpy would be.
inline void copy_part(std::byte* target, const std::byte* source, std::size_t bytes) {
#pragma GCC unroll 8
  for (std::size_t step = kVectorBytes / 2; step > 0; step /= 2) {
    if ((bytes & step) == 0) continue;
    std::memcpy(target, source, step);
    target += step;
    source += step;
  }
}
#endif

/// The first `bytes` of a vector, fewer than it has; the others are 0.
template <class Packed>
Packed load_part(const std::byte* source, std::size_t bytes) {
#if defined(__AVX512F__)
  const auto mask = (std::uint64_t{1} << bytes) - 1;
  if constexpr (sizeof(Packed) == 64) return (Packed)_mm512_maskz_loadu_epi8(mask, source);
  if constexpr (sizeof(Packed) == 32) {
    return (Packed)_mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask), source);
  }
#else
  alignas(Packed) std::byte part[sizeof(Packed)] = {};
  copy_part(part, source, bytes);
  return load<Packed>(part);
#endif
}

template <class Packed>
void store_part(std::byte* target, Packed packed, std::size_t bytes) {
#if defined(__AVX512F__)
  const auto mask = (std::uint64_t{1} << bytes) - 1;
  if constexpr (sizeof(Packed) == 64) _mm512_mask_storeu_epi8(target, mask, (__m512i)packed);
  if constexpr (sizeof(Packed) == 32) {
    _mm256_mask_storeu_epi8(target, static_cast<__mmask32>(mask), (__m256i)packed);
  }
#else
  alignas(Packed) std::byte part[sizeof(Packed)];
  store(part, packed);
  copy_part(target, part, bytes);
#endif
}

/// Past the caches, where the machine can; `target` is aligned to the vector.
template <class Packed>
void stream(std::byte* target, Packed packed) {
#if defined(__x86_64__)
  if constexpr (sizeof packed == 8) {
    _mm_stream_si64(reinterpret_cast<long long*>(target), (long long)packed);
  } else if constexpr (sizeof packed == 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(target), (__m128i)packed);
  }
#if defined(__AVX2__)
  else if constexpr (sizeof packed == 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target), (__m256i)packed);
  }
#endif
#if defined(__AVX512F__)
  else {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target), (__m512i)packed);
  }
#endif
#else
  store(target, packed);
#endif
}

/// What was streamed is seen by others before what is stored after this.
inline void finish_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace
}  // namespace lockstep::inline internal
