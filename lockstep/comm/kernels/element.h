#pragma once

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

constexpr std::size_t element_bytes(Element element) {
  switch (element) {
    case Element::kFloat64:
    case Element::kInt64:
      return 8;
    case Element::kFloat32:
    case Element::kInt32:
      return 4;
    case Element::kFloat16:
    case Element::kBFloat16:
    case Element::kInt16:
      return 2;
    case Element::kInt8:
    case Element::kUint8:
    case Element::kBool:
      return 1;
  }
  return 0;
}

constexpr bool is_floating_point(Element element) {
  return element == Element::kFloat32 || element == Element::kFloat64 ||
         element == Element::kFloat16 || element == Element::kBFloat16;
}

/// "float32", "bool"
constexpr const char* element_name(Element element) {
  switch (element) {
    case Element::kFloat32:
      return "float32";
    case Element::kFloat64:
      return "float64";
    case Element::kFloat16:
      return "float16";
    case Element::kBFloat16:
      return "bfloat16";
    case Element::kInt8:
      return "int8";
    case Element::kInt16:
      return "int16";
    case Element::kInt32:
      return "int32";
    case Element::kInt64:
      return "int64";
    case Element::kUint8:
      return "uint8";
    case Element::kBool:
      return "bool";
  }
  return "?";
}

}  // namespace lockstep::inline internal
