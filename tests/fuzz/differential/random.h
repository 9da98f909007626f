#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace lockstep::differential {

/// The same numbers everywhere: splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /// first to last, both included.
  int between(int first, int last) {
    return first + static_cast<int>(next() % static_cast<std::uint64_t>(last - first + 1));
  }
  bool chance(int percent) { return between(1, 100) <= percent; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<int>(values.size()) - 1)];
  }

 private:
  std::uint64_t state_;
};

}  // namespace lockstep::differential
