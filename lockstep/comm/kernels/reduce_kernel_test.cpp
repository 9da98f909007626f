#include "lockstep/comm/kernels/reduce_kernel.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include "lockstep/comm/kernels/kernel_testing.h"

namespace lockstep::testing_kernels {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1009, 4099};
constexpr std::size_t kSourceCounts[] = {1, 2, 3, 4, 5, 8};
constexpr double kFactor = 1.0 / 3;

/// A bool as it lies in memory: any byte but 0 is true.
struct BoolByte {
  std::uint8_t value;
};

template <class T>
constexpr bool kIsFloating =
    std::is_floating_point_v<T> || std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>;

template <class T>
constexpr Element kElement = [] {
  if (std::is_same_v<T, float>) return Element::kFloat32;
  if (std::is_same_v<T, double>) return Element::kFloat64;
  if (std::is_same_v<T, c10::Half>) return Element::kFloat16;
  if (std::is_same_v<T, c10::BFloat16>) return Element::kBFloat16;
  if (std::is_same_v<T, std::int8_t>) return Element::kInt8;
  if (std::is_same_v<T, std::int16_t>) return Element::kInt16;
  if (std::is_same_v<T, std::int32_t>) return Element::kInt32;
  if (std::is_same_v<T, std::int64_t>) return Element::kInt64;
  if (std::is_same_v<T, std::uint8_t>) return Element::kUint8;
  return Element::kBool;
}();

/// Numbers of every size with the special ones among them; of integers, all bits.
template <class T>
std::vector<T> make_values(std::size_t count, std::size_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> values(count);
  for (T& value : values) {
    if constexpr (kIsFloating<T>) {
      using Limits = std::numeric_limits<T>;
      const T specials[] = {T(0.0F),
                            T(-0.0F),
                            Limits::infinity(),
                            -Limits::infinity(),
                            Limits::quiet_NaN(),
                            Limits::denorm_min(),
                            Limits::min(),
                            Limits::max(),
                            Limits::lowest()};
      const double scale = std::ldexp(1.0, static_cast<int>(random() % 28) - 18);
      const double number = std::uniform_real_distribution<double>(-1, 1)(random) * scale;
      value = random() % 16 == 0 ? specials[random() % std::size(specials)]
                                 : static_cast<T>(static_cast<float>(number));
    } else if constexpr (std::is_same_v<T, BoolByte>) {
      value.value = random() % 2 == 0 ? 0 : static_cast<std::uint8_t>(random());
    } else {
      value = static_cast<T>(random());
    }
  }
  return values;
}

template <class Number>
Number combine_ordered(ReduceOp op, Number a, Number b) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
  }
  if (op == ReduceOp::kMin) return b < a ? b : a;
  return a < b ? b : a;
}

template <class Number>
Number combine(ReduceOp op, Number a, Number b) {
  using Wide = std::conditional_t<std::is_floating_point_v<Number>, Number, std::uint64_t>;
  const Wide x = static_cast<Wide>(a);
  const Wide y = static_cast<Wide>(b);
  if (op == ReduceOp::kMin || op == ReduceOp::kMax) return combine_ordered(op, a, b);
  if (op == ReduceOp::kSum || op == ReduceOp::kAvg) return static_cast<Number>(x + y);
  if (op == ReduceOp::kProduct) return static_cast<Number>(x * y);
  if constexpr (std::is_integral_v<Number>) {
    if (op == ReduceOp::kBand) return a & b;
    if (op == ReduceOp::kBor) return a | b;
    if (op == ReduceOp::kBxor) return a ^ b;
  }
  ADD_FAILURE() << "no such operation";
  return a;
}

/// One element, in the plainest way.
template <class Source, class Target>
Target expected_element(ReduceOp op, const std::vector<std::vector<Source>>& sources,
                        std::size_t i) {
  if constexpr (std::is_same_v<Source, BoolByte>) {
    int true_count = 0;
    for (const auto& source : sources) true_count += source[i].value != 0;
    const bool is_and = op == ReduceOp::kProduct || op == ReduceOp::kMin || op == ReduceOp::kBand;
    if (op == ReduceOp::kBxor) return {static_cast<std::uint8_t>(true_count % 2)};
    return {is_and ? true_count == static_cast<int>(sources.size()) : true_count > 0};
  } else {
    using Number = std::conditional_t<kIsFloating<Source> && sizeof(Source) == 2, float, Source>;
    auto result = static_cast<Number>(sources[0][i]);
    for (std::size_t s = 1; s < sources.size(); ++s) {
      result = combine(op, result, static_cast<Number>(sources[s][i]));
    }
    if (op == ReduceOp::kAvg) result *= static_cast<Number>(kFactor);
    return static_cast<Target>(result);
  }
}

/// The same bits, or both NaN.
template <class T>
bool is_same(const T& a, const T& b) {
  if constexpr (kIsFloating<T>) {
    if (std::isnan(static_cast<double>(a))) return std::isnan(static_cast<double>(b));
  }
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

enum class Placement { kInPlace, kApart, kOneInPlaceAndOneApart };

/// Runs one reduction by every instruction set; targets lie at different distances from a line.
template <class Source, class Target>
void check_reduction(ReduceOp op, const std::vector<std::vector<Source>>& sources,
                     Placement placement, Store store, std::size_t misalignment) {
  const std::size_t elements = sources[0].size();
  std::vector<Target> expected(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    expected[i] = expected_element<Source, Target>(op, sources, i);
  }
  for (const InstructionSet set : supported_sets()) {
    std::vector<Buffer> buffers;
    std::vector<const std::byte*> source_pointers;
    for (std::size_t s = 0; s < sources.size(); ++s) {
      buffers.emplace_back(elements * sizeof(Source), (s + 1) * misalignment * sizeof(Source));
      buffers.back().write(sources[s].data());
      source_pointers.push_back(buffers.back().data());
    }
    const std::size_t first_apart = buffers.size();
    for (std::size_t t = 0; t < 3; ++t) {
      buffers.emplace_back(elements * sizeof(Target), t / 2 * misalignment * sizeof(Target));
    }
    std::vector<std::size_t> target_indices;
    if (placement == Placement::kInPlace) {
      for (std::size_t s = 0; s < sources.size(); ++s) target_indices.push_back(s);
    } else if (placement == Placement::kApart) {
      target_indices = {first_apart, first_apart + 1, first_apart + 2};
    } else {
      target_indices = {first_apart + 2, sources.size() - 1, first_apart};
    }
    std::vector<std::byte*> target_pointers;
    for (const std::size_t index : target_indices) {
      target_pointers.push_back(buffers[index].data());
    }

    reduce_converted({kElement<Target>, op, kFactor}, kElement<Source>, source_pointers,
                     target_pointers, elements, store, set);

    for (const std::size_t index : target_indices) {
      const auto* results = reinterpret_cast<const Target*>(buffers[index].data());
      for (std::size_t i = 0; i < elements; ++i) {
        ASSERT_TRUE(is_same(results[i], expected[i]))
            << instruction_set_name(set) << ", " << element_name(kElement<Source>) << " to "
            << element_name(kElement<Target>) << ", op " << static_cast<int>(op) << ", "
            << sources.size() << " sources, element " << i << " of " << elements;
      }
    }
    for (const Buffer& buffer : buffers) {
      ASSERT_TRUE(buffer.is_surroundings_intact())
          << instruction_set_name(set) << ", " << element_name(kElement<Target>) << ", " << elements
          << " elements";
    }
  }
}

template <class Source, class Target = Source>
void check_all_sizes() {
  std::vector<ReduceOp> ops{ReduceOp::kSum};
  if constexpr (kIsFloating<Source>) {
    ops.push_back(ReduceOp::kAvg);
  } else {
    ops.insert(ops.end(), {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor});
  }
  if constexpr (std::is_same_v<Source, Target>) {
    ops.insert(ops.end(), {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax});
  }
  for (const std::size_t elements : kSizes) {
    for (const std::size_t source_count : kSourceCounts) {
      std::vector<std::vector<Source>> sources;
      for (std::size_t s = 0; s < source_count; ++s) {
        sources.push_back(make_values<Source>(elements, elements * 64 + s));
      }
      for (const ReduceOp op : ops) {
        const std::size_t misalignment = (elements + source_count) % 4;
        const auto check = [&](Placement placement, Store store) {
          check_reduction<Source, Target>(op, sources, placement, store, misalignment);
        };
        check(Placement::kApart, Store::kOrdinary);
        check(Placement::kApart, Store::kNonTemporal);
        if constexpr (std::is_same_v<Source, Target>) {
          check(Placement::kInPlace, Store::kOrdinary);
          check(Placement::kOneInPlaceAndOneApart, Store::kNonTemporal);
        }
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(ReduceKernel, Float32MatchesPlainArithmetic) {
  check_all_sizes<float>();
}
TEST(ReduceKernel, Float64MatchesPlainArithmetic) {
  check_all_sizes<double>();
}
TEST(ReduceKernel, Float16MatchesPlainArithmetic) {
  check_all_sizes<c10::Half>();
}
TEST(ReduceKernel, BFloat16MatchesPlainArithmetic) {
  check_all_sizes<c10::BFloat16>();
}
TEST(ReduceKernel, Int8MatchesPlainArithmetic) {
  check_all_sizes<std::int8_t>();
}
TEST(ReduceKernel, Int16MatchesPlainArithmetic) {
  check_all_sizes<std::int16_t>();
}
TEST(ReduceKernel, Int32MatchesPlainArithmetic) {
  check_all_sizes<std::int32_t>();
}
TEST(ReduceKernel, Int64MatchesPlainArithmetic) {
  check_all_sizes<std::int64_t>();
}
TEST(ReduceKernel, Uint8MatchesPlainArithmetic) {
  check_all_sizes<std::uint8_t>();
}
TEST(ReduceKernel, BoolsAreOrAndXorWithResults0Or1) {
  check_all_sizes<BoolByte>();
}

TEST(ReduceKernel, ReducesCompressedSourcesToFloat32) {
  check_all_sizes<c10::Half, float>();
  check_all_sizes<c10::BFloat16, float>();
}

TEST(ReduceKernel, MinAndMaxGiveTheFirstNanWithItsBitsAndTheFirstZero) {
  constexpr std::uint32_t kNan1 = 0xffc00123;
  constexpr std::uint32_t kNan2 = 0x7fc00456;
  constexpr std::uint32_t kOne = 0x3f800000;
  constexpr std::uint32_t kMinusZero = 0x80000000;
  const std::uint32_t a[] = {kOne, kNan1, kNan1, 0, kMinusZero};
  const std::uint32_t b[] = {kNan1, kNan2, kOne, kMinusZero, 0};
  const std::uint32_t expected[] = {kNan1, kNan1, kNan1, 0, kMinusZero};
  const std::byte* sources[] = {reinterpret_cast<const std::byte*>(a),
                                reinterpret_cast<const std::byte*>(b)};
  for (const InstructionSet set : supported_sets()) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      std::uint32_t result[5] = {};
      std::byte* const target = reinterpret_cast<std::byte*>(result);
      reduce({Element::kFloat32, op}, sources, {&target, 1}, 5, Store::kOrdinary, set);
      EXPECT_TRUE(std::equal(result, result + 5, expected)) << instruction_set_name(set);
    }
  }
}

/// The square sum is the same bits for every instruction set and store, and close to the sum in
/// longer numbers.
template <class T>
void check_squares(std::size_t elements) {
  std::vector<std::vector<T>> values;
  for (std::size_t s = 0; s < 3; ++s) {
    std::vector<T> numbers(elements);
    for (std::size_t i = 0; i < elements; ++i) {
      numbers[i] = static_cast<T>(std::sin(static_cast<float>(i * 3 + s)));
    }
    values.push_back(numbers);
  }
  std::vector<double> sums;
  for (const InstructionSet set : supported_sets()) {
    for (const Store store : {Store::kOrdinary, Store::kNonTemporal}) {
      std::vector<Buffer> buffers;
      for (std::size_t s = 0; s < 4; ++s) {
        buffers.emplace_back(elements * sizeof(T), s * sizeof(T));
        if (s < 3) buffers.back().write(values[s].data());
      }
      const std::byte* const sources[] = {buffers[0].data(), buffers[1].data(), buffers[2].data()};
      std::byte* const targets[] = {buffers[1].data(), buffers[3].data()};
      sums.push_back(reduce_and_sum_squares({kElement<T>, ReduceOp::kAvg, kFactor}, kElement<T>,
                                            sources, targets, elements, store, set));
      long double reference = 0;
      for (const std::byte* const target : targets) {
        reference = 0;
        for (std::size_t i = 0; i < elements; ++i) {
          const T result = reinterpret_cast<const T*>(target)[i];
          ASSERT_TRUE(is_same(result, expected_element<T, T>(ReduceOp::kAvg, values, i)));
          const auto number = static_cast<long double>(static_cast<double>(result));
          reference += number * number;
        }
      }
      EXPECT_NEAR(sums.back(), static_cast<double>(reference), 1e-12 * (1.0 + sums.back()));
      for (const Buffer& buffer : buffers) EXPECT_TRUE(buffer.is_surroundings_intact());
    }
  }
  for (const double sum : sums) EXPECT_EQ(sum, sums[0]) << element_name(kElement<T>) << elements;
}

TEST(ReduceKernel, SumsTheSquaresOfItsResultsInAnOrderOfItsOwn) {
  for (const std::size_t elements : kSizes) {
    check_squares<float>(elements);
    check_squares<double>(elements);
    check_squares<c10::Half>(elements);
    check_squares<c10::BFloat16>(elements);
  }
}

}  // namespace
}  // namespace lockstep::testing_kernels
