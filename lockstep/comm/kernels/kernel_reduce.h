#pragma once

#include <type_traits>

#include "lockstep/comm/kernels/kernel_table.h"
#include "lockstep/comm/kernels/kernel_vectors.h"

/// The loop of a reduction, for every element and operation. As kernel_vectors.h: local to each
/// file compiled for one instruction set.
namespace lockstep::inline internal {
namespace {

struct Sum {
  template <class Lanes>
  static Lanes apply(Lanes a, Lanes b) {
    return a + b;
  }
};
struct Product {
  template <class Lanes>
  static Lanes apply(Lanes a, Lanes b) {
    return a * b;
  }
};
// The first of equals, so of zeros; the first NaN, if any.
struct Minimum {
  template <class Lanes>
  static Lanes apply(Lanes a, Lanes b) {
    return ((a <= b) | (a != a)) ? a : b;
  }
};
struct Maximum {
  template <class Lanes>
  static Lanes apply(Lanes a, Lanes b) {
    return ((a >= b) | (a != a)) ? a : b;
  }
};
struct And {
  template <class Lanes>
  static Lanes apply(Lanes a, Lanes b) {
    return a & b;
  }
};
struct Or {
  template <class Lanes>
  static Lanes apply(Lanes a, Lanes b) {
    return a | b;
  }
};
struct Xor {
  template <class Lanes>
  static Lanes apply(Lanes a, Lanes b) {
    return a ^ b;
  }
};

/// Vectors that go through all sources together: enough to hide the latency of an addition, few
/// enough to stay in registers.
constexpr std::size_t kUnroll = 4;

template <class Source, class Target, class Op, bool kScaled>
class Reducer {
  using Lanes = typename Source::Lanes;
  using SourcePacked = typename Source::Packed;
  using TargetPacked = typename Target::Packed;
  static constexpr std::size_t kStep = kLanes<Source>;
  static_assert(kStep == kLanes<Target>);
  static constexpr bool kHasPairLoop = std::is_same_v<Op, Sum>;  ///< the operation that matters

 public:
  static void run(const ReduceCall& call) {
    const Reducer reducer(call);
    const std::size_t target_count = call.ordinary_count + call.streamed_count;
    if (call.streamed_count == 0) {
      const bool is_pair = call.source_count == 2 && target_count == 2;
      (reducer.*(is_pair ? &Reducer::run_range<kHasPairLoop> : &Reducer::run_range<false>))(
          0, call.elements, target_count);
      return;
    }
    // Whole lines are streamed; what lies before the first and after the last is not.
    constexpr std::size_t kLine = kCacheLineBytes / Target::kElementBytes;
    const auto address = reinterpret_cast<std::uintptr_t>(call.targets[call.ordinary_count]);
    const std::size_t to_line = (-address % kCacheLineBytes) / Target::kElementBytes;
    const std::size_t head = to_line < call.elements ? to_line : call.elements;
    const std::size_t lines_end = head + (call.elements - head) / kLine * kLine;
    reducer.run_range<false>(0, head, target_count);
    reducer.run_range<false>(head, lines_end, call.ordinary_count);
    reducer.run_range<false>(lines_end, call.elements, target_count);
    finish_streams();
  }

 private:
  explicit Reducer(const ReduceCall& call) : call_(call) {
    if constexpr (kScaled) factor_ = Lanes{} + static_cast<decltype(Lanes{}[0] + 0)>(call.factor);
  }

  /// Streams to the targets from `ordinary_end` on. kPair: two sources and two ordinary targets,
  /// whose loops and pointers vanish. Not inlined: once a kernel is enough.
  template <bool kPair>
  [[gnu::noinline]] void run_range(std::size_t begin, std::size_t end,
                                   std::size_t ordinary_end) const {
    constexpr std::size_t kBlock = kUnroll * kStep;
    std::size_t i = begin;
    if constexpr (kPair) {
      const std::byte* const sources[] = {call_.sources[0], call_.sources[1]};
      std::byte* const targets[] = {call_.targets[0], call_.targets[1]};
      for (; end - i >= kBlock; i += kBlock) run_vectors<kUnroll>(sources, 2, targets, 2, 2, i);
    }
    const std::size_t source_count = call_.source_count;
    const std::size_t target_count = call_.ordinary_count + call_.streamed_count;
    for (; end - i >= kBlock; i += kBlock) {
      run_vectors<kUnroll>(call_.sources, source_count, call_.targets, ordinary_end, target_count,
                           i);
    }
    for (; end - i >= kStep; i += kStep) {
      run_vectors<1>(call_.sources, source_count, call_.targets, ordinary_end, target_count, i);
    }
    if (i < end) run_part(i, end - i);
  }

  template <std::size_t kVectors>
  [[gnu::always_inline]] inline void run_vectors(const std::byte* const* sources,
                                                 std::size_t source_count,
                                                 std::byte* const* targets,
                                                 std::size_t ordinary_end, std::size_t target_count,
                                                 std::size_t i) const {
    Lanes lanes[kVectors];
    const std::byte* source = sources[0] + i * Source::kElementBytes;
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) {
      lanes[v] = Source::unpack(load<SourcePacked>(source + v * sizeof(SourcePacked)));
    }
    for (std::size_t s = 1; s < source_count; ++s) {
      source = sources[s] + i * Source::kElementBytes;
#pragma GCC unroll 4
      for (std::size_t v = 0; v < kVectors; ++v) {
        lanes[v] = Op::apply(lanes[v],
                             Source::unpack(load<SourcePacked>(source + v * sizeof(SourcePacked))));
      }
    }
    TargetPacked packed[kVectors];
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) packed[v] = Target::pack(finish(lanes[v]));
    for (std::size_t t = 0; t < ordinary_end; ++t) {
      std::byte* target = targets[t] + i * Target::kElementBytes;
#pragma GCC unroll 4
      for (std::size_t v = 0; v < kVectors; ++v) {
        store(target + v * sizeof(TargetPacked), packed[v]);
      }
    }
    for (std::size_t t = ordinary_end; t < target_count; ++t) {
      std::byte* target = targets[t] + i * Target::kElementBytes;
#pragma GCC unroll 4
      for (std::size_t v = 0; v < kVectors; ++v) {
        stream(target + v * sizeof(TargetPacked), packed[v]);
      }
    }
  }

  /// Fewer elements than a vector has lanes.
  void run_part(std::size_t i, std::size_t elements) const {
    const auto lanes_of = [&](std::size_t s) {
      return Source::unpack(load_part<SourcePacked>(call_.sources[s] + i * Source::kElementBytes,
                                                    elements * Source::kElementBytes));
    };
    Lanes lanes = lanes_of(0);
    for (std::size_t s = 1; s < call_.source_count; ++s) lanes = Op::apply(lanes, lanes_of(s));
    const TargetPacked packed = Target::pack(finish(lanes));
    for (std::size_t t = 0; t < call_.ordinary_count + call_.streamed_count; ++t) {
      store_part(call_.targets[t] + i * Target::kElementBytes, packed,
                 elements * Target::kElementBytes);
    }
  }

  Lanes finish(Lanes lanes) const {
    if constexpr (kScaled) return lanes * factor_;
    return lanes;
  }

  const ReduceCall call_;
  Lanes factor_{};
};

template <class Source, class Target>
ReduceKernel find_sum(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return Reducer<Source, Target, Sum, false>::run;
    case ReduceOp::kAvg:
      return Reducer<Source, Target, Sum, true>::run;
    default:
      return nullptr;
  }
}

template <class Floating>
ReduceKernel find_floating(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProduct:
      return Reducer<Floating, Floating, Product, false>::run;
    case ReduceOp::kMin:
      return Reducer<Floating, Floating, Minimum, false>::run;
    case ReduceOp::kMax:
      return Reducer<Floating, Floating, Maximum, false>::run;
    default:
      return find_sum<Floating, Floating>(op);
  }
}

/// Only a comparison asks for the sign: sums and products are formed unsigned, where overflow
/// wraps.
template <class Declared, class Unsigned>
ReduceKernel find_integer(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return Reducer<Unsigned, Unsigned, Sum, false>::run;
    case ReduceOp::kProduct:
      return Reducer<Unsigned, Unsigned, Product, false>::run;
    case ReduceOp::kMin:
      return Reducer<Declared, Declared, Minimum, false>::run;
    case ReduceOp::kMax:
      return Reducer<Declared, Declared, Maximum, false>::run;
    default:
      return nullptr;
  }
}

inline ReduceKernel find_uint8(ReduceOp op) {
  using Byte = Plain<std::uint8_t>;
  switch (op) {
    case ReduceOp::kBand:
      return Reducer<Byte, Byte, And, false>::run;
    case ReduceOp::kBor:
      return Reducer<Byte, Byte, Or, false>::run;
    case ReduceOp::kBxor:
      return Reducer<Byte, Byte, Xor, false>::run;
    default:
      return find_integer<Byte, Byte>(op);
  }
}

inline ReduceKernel find_bool(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBor:
      return Reducer<Bool, Bool, Or, false>::run;
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBand:
      return Reducer<Bool, Bool, And, false>::run;
    case ReduceOp::kBxor:
      return Reducer<Bool, Bool, Xor, false>::run;
    default:
      return nullptr;
  }
}

inline ReduceKernel find_reduce(Element source, Element target, ReduceOp op) {
  if (source == Element::kFloat16 && target == Element::kFloat32) {
    return find_sum<Float16, Plain<float>>(op);
  }
  if (source == Element::kBFloat16 && target == Element::kFloat32) {
    return find_sum<BFloat16, Plain<float>>(op);
  }
  if (source != target) return nullptr;
  switch (source) {
    case Element::kFloat32:
      return find_floating<Plain<float>>(op);
    case Element::kFloat64:
      return find_floating<Plain<double>>(op);
    case Element::kFloat16:
      return find_floating<Float16>(op);
    case Element::kBFloat16:
      return find_floating<BFloat16>(op);
    case Element::kInt8:
      return find_integer<Plain<std::int8_t>, Plain<std::uint8_t>>(op);
    case Element::kInt16:
      return find_integer<Plain<std::int16_t>, Plain<std::uint16_t>>(op);
    case Element::kInt32:
      return find_integer<Plain<std::int32_t>, Plain<std::uint32_t>>(op);
    case Element::kInt64:
      return find_integer<Plain<std::int64_t>, Plain<std::uint64_t>>(op);
    case Element::kUint8:
      return find_uint8(op);
    case Element::kBool:
      return find_bool(op);
  }
  return nullptr;
}

}  // namespace
}  // namespace lockstep::inline internal
