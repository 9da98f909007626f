#pragma once

#include <optional>

#include <c10/core/ScalarType.h>

#include "lockstep/comm/kernels/element.h"

namespace lockstep::inline internal {

/// Element type of a dtype; empty: no kernel supports it.
inline std::optional<Element> element_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kFloat:
      return Element::kFloat32;
    case c10::kDouble:
      return Element::kFloat64;
    case c10::kHalf:
      return Element::kFloat16;
    case c10::kBFloat16:
      return Element::kBFloat16;
    case c10::kChar:
      return Element::kInt8;
    case c10::kShort:
      return Element::kInt16;
    case c10::kInt:
      return Element::kInt32;
    case c10::kLong:
      return Element::kInt64;
    case c10::kByte:
      return Element::kUint8;
    case c10::kBool:
      return Element::kBool;
    default:
      return std::nullopt;
  }
}

}  // namespace lockstep::inline internal
