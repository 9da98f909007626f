#include "lockstep/snapshot/storage_types.h"

#include <algorithm>
#include <array>
#include <utility>

namespace lockstep {
namespace {

constexpr std::array<std::pair<std::string_view, c10::ScalarType>, 12> kStorageTypes{{
    {"BoolStorage", c10::ScalarType::Bool},
    {"ByteStorage", c10::ScalarType::Byte},
    {"CharStorage", c10::ScalarType::Char},
    {"ShortStorage", c10::ScalarType::Short},
    {"IntStorage", c10::ScalarType::Int},
    {"LongStorage", c10::ScalarType::Long},
    {"HalfStorage", c10::ScalarType::Half},
    {"BFloat16Storage", c10::ScalarType::BFloat16},
    {"FloatStorage", c10::ScalarType::Float},
    {"DoubleStorage", c10::ScalarType::Double},
    {"ComplexFloatStorage", c10::ScalarType::ComplexFloat},
    {"ComplexDoubleStorage", c10::ScalarType::ComplexDouble},
}};

}  // namespace

std::optional<c10::ScalarType> storage_dtype(std::string_view storage_class) {
  for (const auto& [name, dtype] : kStorageTypes) {
    if (name == storage_class) return dtype;
  }
  return std::nullopt;
}

bool is_storable(c10::ScalarType dtype) {
  return std::any_of(kStorageTypes.begin(), kStorageTypes.end(),
                     [&](const auto& entry) { return entry.second == dtype; });
}

}  // namespace lockstep
