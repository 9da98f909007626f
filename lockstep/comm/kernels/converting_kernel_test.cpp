#include <algorithm>
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

/// The average of the sources, by reduce_converted.
template <class Target, class Source>
std::vector<Target> average(Element target_element, Element source_element, double factor,
                            const std::vector<std::vector<Source>>& sources, Store store,
                            InstructionSet set) {
  std::vector<const std::byte*> pointers;
  for (const auto& source : sources) {
    pointers.push_back(reinterpret_cast<const std::byte*>(source.data()));
  }
  std::vector<Target> results(sources[0].size());
  auto* const target = reinterpret_cast<std::byte*>(results.data());
  reduce_converted({target_element, ReduceOp::kAvg, factor}, source_element, pointers, {&target, 1},
                   results.size(), store, set);
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

template <class Half>
void check_widening(Element element) {
  const std::vector<Half> halves = all_halves<Half>();
  std::vector<float> first;  // Of NaNs only that all instruction sets leave the same one.
  for (const InstructionSet set : supported_sets()) {
    SCOPED_TRACE(instruction_set_name(set));
    const auto widened =
        average<float, Half>(Element::kFloat32, element, 1, {halves}, Store::kOrdinary, set);
    if (first.empty()) first = widened;
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const auto expected = static_cast<float>(halves[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(widened[i])) << i;
        ASSERT_EQ(bits_of(widened[i]), bits_of(first[i])) << i;
      } else {
        ASSERT_EQ(bits_of(widened[i]), bits_of(expected)) << i;
      }
    }
  }
}

/// Each half with the one `distance` after it: their mean is a tie where the distance is 1, and
/// numbers of all sizes are added where it is odd and large.
template <class Half>
void check_rounding(Element element, std::size_t distance, double factor) {
  const std::vector<Half> halves = all_halves<Half>();
  std::vector<Half> others(halves.size());
  std::rotate_copy(halves.begin(), halves.begin() + static_cast<std::ptrdiff_t>(distance),
                   halves.end(), others.begin());
  std::vector<Half> first;
  for (const InstructionSet set : supported_sets()) {
    SCOPED_TRACE(instruction_set_name(set));
    const auto averages =
        average<Half, Half>(element, element, factor, {halves, others}, Store::kNonTemporal, set);
    if (first.empty()) first = averages;
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const float expected = (static_cast<float>(halves[i]) + static_cast<float>(others[i])) *
                             static_cast<float>(factor);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(static_cast<float>(averages[i]))) << i;
        ASSERT_EQ(averages[i].x, first[i].x) << i;
      } else {
        ASSERT_EQ(averages[i].x, static_cast<Half>(expected).x) << i;
      }
    }
  }
}

template <class Half>
void check_half_conversions(Element element) {
  check_widening<Half>(element);
  check_rounding<Half>(element, 1, 0.5);
  check_rounding<Half>(element, 1, 1);  // The largest ones overflow.
  check_rounding<Half>(element, 1, 1.0 / 3);
  check_rounding<Half>(element, 257, 0.5);
  check_rounding<Half>(element, 16'411, 1);
}

TEST(ConvertingKernel, ConvertsEveryFloat16AndRoundsToItToNearestEven) {
  check_half_conversions<c10::Half>(Element::kFloat16);
}

TEST(ConvertingKernel, ConvertsEveryBFloat16AndRoundsToItToNearestEven) {
  check_half_conversions<c10::BFloat16>(Element::kBFloat16);
}

TEST(ConvertingKernel, ScalesWhileItConverts) {
  const std::vector<c10::Half> halves = all_halves<c10::Half>();
  for (const InstructionSet set : supported_sets()) {
    const auto scaled = average<float, c10::Half>(Element::kFloat32, Element::kFloat16, 1.0 / 3,
                                                  {halves}, Store::kOrdinary, set);
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const float expected = static_cast<float>(halves[i]) * static_cast<float>(1.0 / 3);
      if (!std::isnan(expected)) {
        EXPECT_EQ(scaled[i], expected);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::testing_kernels
