#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lockstep/comm/kernels/instruction_set.h"

/// What the tests of the kernels share.
namespace lockstep::testing_kernels {

inline std::vector<InstructionSet> supported_sets() {
  std::vector<InstructionSet> sets;
  for (const auto set :
       {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (is_supported(set)) sets.push_back(set);
  }
  return sets;
}

/// Bytes that begin a chosen distance after a 64-byte line, with a pattern before and after them.
class Buffer {
 public:
  Buffer(std::size_t bytes, std::size_t misalignment)
      : storage_(bytes + misalignment + 3 * kLine, kPattern), bytes_(bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    begin_ = kLine + (-address % kLine) + misalignment;
  }

  std::byte* data() { return storage_.data() + begin_; }

  void write(const void* values) {
    if (bytes_ > 0) std::memcpy(data(), values, bytes_);
  }

  bool is_surroundings_intact() const {
    const auto is_pattern = [](std::byte byte) { return byte == kPattern; };
    const auto begin = storage_.begin() + static_cast<std::ptrdiff_t>(begin_);
    return std::all_of(storage_.begin(), begin, is_pattern) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(bytes_), storage_.end(), is_pattern);
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr std::byte kPattern{0xa5};
  std::vector<std::byte> storage_;
  std::size_t begin_ = 0;
  std::size_t bytes_;
};

}  // namespace lockstep::testing_kernels
