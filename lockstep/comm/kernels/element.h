#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lockstep::inline internal {

/// What a buffer of the shared-memory backend holds; numbers in the machine's own byte order.
enum class Element : std::uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kBool,
};

/// By element. Inside the functions that read them each call would build them on the stack.
inline constexpr std::uint8_t kElementBytes[] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 1};
inline constexpr std::array kElementNames = {"float32", "float64", "float16", "bfloat16", "int8",
                                             "int16",   "int32",   "int64",   "uint8",    "bool"};

constexpr std::size_t element_bytes(Element element) {
  return kElementBytes[static_cast<std::size_t>(element)];
}

constexpr bool is_floating_point(Element element) {
  return element == Element::kFloat32 || element == Element::kFloat64 ||
         element == Element::kFloat16 || element == Element::kBFloat16;
}

/// "float32", "bool"
constexpr const char* element_name(Element element) {
  const auto number = static_cast<std::size_t>(element);
  // Read from another rank's memory.
  return number < kElementNames.size() ? kElementNames[number] : "?";
}

}  // namespace lockstep::inline internal
