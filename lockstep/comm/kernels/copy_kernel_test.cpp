#include "lockstep/comm/kernels/copy_kernel.h"

#include <cstring>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/comm/kernels/kernel_testing.h"

namespace lockstep::testing_kernels {
namespace {

TEST(CopyKernel, CopiesAnySizeFromAndToAnyAddress) {
  for (const InstructionSet set : supported_sets()) {
    for (const Store store : {Store::kOrdinary, Store::kNonTemporal}) {
      for (const std::size_t bytes : {0, 1, 63, 64, 65, 255, 256, 257, 1009, 70001}) {
        for (const std::size_t misalignment : {0, 1, 17, 63}) {
          Buffer source(bytes, 5);
          Buffer target(bytes, misalignment);
          std::vector<std::uint8_t> values(bytes);
          std::iota(values.begin(), values.end(), std::uint8_t{1});
          source.write(values.data());
          copy(target.data(), source.data(), bytes, store, set);
          EXPECT_TRUE(bytes == 0 || std::memcmp(target.data(), values.data(), bytes) == 0)
              << instruction_set_name(set) << ' ' << bytes << ' ' << misalignment;
          EXPECT_TRUE(target.is_surroundings_intact())
              << instruction_set_name(set) << ' ' << bytes << ' ' << misalignment;
        }
      }
    }
  }
}

TEST(CopyKernel, TakesEmptyTensorsWhichHaveNoAddress) {
  for (const InstructionSet set : supported_sets()) {
    for (const Store store : {Store::kOrdinary, Store::kNonTemporal}) {
      copy(nullptr, nullptr, 0, store, set);
    }
  }
}

}  // namespace
}  // namespace lockstep::testing_kernels
