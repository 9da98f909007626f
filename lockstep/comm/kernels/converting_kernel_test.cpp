#include <cmath>
#include <cstring>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include "lockstep/comm/kernels/kernel_testing.h"
#include "lockstep/comm/kernels/reduce_kernel.h"

namespace lockstep::testing_kernels {
namespace {

struct Conversion {
  Element source;
  Element target;
  double factor = 1;
};

// By reduce_converted of one source.
template <class Target, class Source>
std::vector<Target> converted(const Conversion& conversion, const std::vector<Source>& values,
                              Store store, InstructionSet set) {
  std::vector<Target> results(values.size());
  const auto* const source = reinterpret_cast<const std::byte*>(values.data());
  auto* const target = reinterpret_cast<std::byte*>(results.data());
  reduce_converted({conversion.target, ReduceOp::kAvg, conversion.factor}, conversion.source,
                   {&source, 1}, {&target, 1}, values.size(), store, set);
  return results;
}

/// Every pattern of 16 bits.
template <class Half>
std::vector<Half> all_halves() {
  std::vector<Half> halves;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    halves.push_back(Half(static_cast<std::uint16_t>(bits), Half::from_bits()));
  }
  return halves;
}

std::uint32_t bits_of(float number) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

/// All halves as float32, the ties between two of them, and the float32 beside either.
template <class Half>
std::vector<float> roundings(const std::vector<Half>& halves) {
  std::vector<float> numbers;
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const auto here = static_cast<float>(halves[i]);
    const auto next = static_cast<float>(halves[(i + 1) % halves.size()]);
    for (const float number : {here, static_cast<float>((double{here} + next) / 2)}) {
      numbers.insert(numbers.end(),
                     {number, std::nextafter(number, INFINITY), std::nextafter(number, -INFINITY)});
    }
  }
  for (const float number : {65504.0F, 65519.996F, 65520.0F, 1e6F, 3.4028235e38F, 1e-45F, 2e-8F,
                             2.9802322e-8F, 2.9802326e-8F, 6.1035156e-5F}) {
    numbers.insert(numbers.end(), {number, -number});
  }
  return numbers;
}

template <class Half>
void check_half_conversions(Element element) {
  const std::vector<Half> halves = all_halves<Half>();
  const std::vector<float> numbers = roundings(halves);
  // Of NaNs only that all instruction sets leave the same one.
  std::vector<float> first_widened;
  std::vector<Half> first_narrowed;
  for (const InstructionSet set : supported_sets()) {
    SCOPED_TRACE(instruction_set_name(set));
    const auto widened =
        converted<float>({element, Element::kFloat32}, halves, Store::kOrdinary, set);
    const auto narrowed =
        converted<Half>({Element::kFloat32, element}, numbers, Store::kNonTemporal, set);
    if (first_widened.empty()) first_widened = widened;
    if (first_narrowed.empty()) first_narrowed = narrowed;
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const auto expected = static_cast<float>(halves[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(widened[i])) << i;
        ASSERT_EQ(bits_of(widened[i]), bits_of(first_widened[i])) << i;
      } else {
        ASSERT_EQ(bits_of(widened[i]), bits_of(expected)) << i;
      }
    }
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (std::isnan(numbers[i])) {
        ASSERT_TRUE(std::isnan(static_cast<float>(narrowed[i]))) << i;
        ASSERT_EQ(narrowed[i].x, first_narrowed[i].x) << i;
      } else {
        ASSERT_EQ(narrowed[i].x, static_cast<Half>(numbers[i]).x) << numbers[i];
      }
    }
  }
}

TEST(ConvertingKernel, ConvertsEveryFloat16AndRoundsToItToNearestEven) {
  check_half_conversions<c10::Half>(Element::kFloat16);
}

TEST(ConvertingKernel, ConvertsEveryBFloat16AndRoundsToItToNearestEven) {
  check_half_conversions<c10::BFloat16>(Element::kBFloat16);
}

TEST(ConvertingKernel, ScalesWhileItConvertsAndRoundsOnce) {
  std::vector<float> values(1009);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.37F - 150;
  for (const InstructionSet set : supported_sets()) {
    const auto scaled = converted<float>({Element::kFloat32, Element::kFloat32, 0.25}, values,
                                         Store::kOrdinary, set);
    const auto halves = converted<c10::Half>({Element::kFloat32, Element::kFloat16, 1.0 / 3},
                                             values, Store::kOrdinary, set);
    const auto brains = converted<c10::BFloat16>({Element::kFloat32, Element::kBFloat16, 1.0 / 3},
                                                 values, Store::kOrdinary, set);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float third = values[i] * static_cast<float>(1.0 / 3);
      EXPECT_EQ(scaled[i], values[i] * 0.25F);
      EXPECT_EQ(halves[i].x, static_cast<c10::Half>(third).x);
      EXPECT_EQ(brains[i].x, static_cast<c10::BFloat16>(third).x);
    }
  }
}

}  // namespace
}  // namespace lockstep::testing_kernels
