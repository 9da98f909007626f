#include "lockstep/snapshot/pickle/storage_types.h"

#include <algorithm>
#include <array>

namespace lockstep::inline internal {
namespace {

struct StoredDtype {
  std::string_view name;
  c10::ScalarType dtype;
  std::string_view storage_class = {};  // of Python's torch; none for those over bytes
};

constexpr std::array<StoredDtype, 21> kStoredDtypes{{
    {"bool", c10::ScalarType::Bool, "BoolStorage"},
    {"uint8", c10::ScalarType::Byte, "ByteStorage"},
    {"int8", c10::ScalarType::Char, "CharStorage"},
    {"int16", c10::ScalarType::Short, "ShortStorage"},
    {"int32", c10::ScalarType::Int, "IntStorage"},
    {"int64", c10::ScalarType::Long, "LongStorage"},
    {"float16", c10::ScalarType::Half, "HalfStorage"},
    {"bfloat16", c10::ScalarType::BFloat16, "BFloat16Storage"},
    {"float32", c10::ScalarType::Float, "FloatStorage"},
    {"float64", c10::ScalarType::Double, "DoubleStorage"},
    {"complex64", c10::ScalarType::ComplexFloat, "ComplexFloatStorage"},
    {"complex128", c10::ScalarType::ComplexDouble, "ComplexDoubleStorage"},
    {"uint16", c10::ScalarType::UInt16},
    {"uint32", c10::ScalarType::UInt32},
    {"uint64", c10::ScalarType::UInt64},
    {"complex32", c10::ScalarType::ComplexHalf},
    {"float8_e4m3fn", c10::ScalarType::Float8_e4m3fn},
    {"float8_e4m3fnuz", c10::ScalarType::Float8_e4m3fnuz},
    {"float8_e5m2", c10::ScalarType::Float8_e5m2},
    {"float8_e5m2fnuz", c10::ScalarType::Float8_e5m2fnuz},
    {"float8_e8m0fnu", c10::ScalarType::Float8_e8m0fnu},
}};

// Null without one.
template <class Value>
const StoredDtype* find(Value StoredDtype::*field, const Value& value) {
  const auto found = std::ranges::find(kStoredDtypes, value, field);
  return found == kStoredDtypes.end() ? nullptr : &*found;
}

}  // namespace

std::optional<c10::ScalarType> storage_dtype(std::string_view storage_class) {
  const StoredDtype* const found =
      storage_class.empty() ? nullptr : find(&StoredDtype::storage_class, storage_class);
  return found ? std::optional(found->dtype) : std::nullopt;
}

std::optional<c10::ScalarType> untyped_dtype(std::string_view name) {
  const StoredDtype* const found = find(&StoredDtype::name, name);
  return found && found->storage_class.empty() ? std::optional(found->dtype) : std::nullopt;
}

std::string_view dtype_name(c10::ScalarType dtype) {
  const StoredDtype* const found = find(&StoredDtype::dtype, dtype);
  return found ? found->name : c10::toString(dtype);
}

std::optional<c10::ScalarType> dtype_of_name(std::string_view name) {
  const StoredDtype* const found = find(&StoredDtype::name, name);
  return found ? std::optional(found->dtype) : std::nullopt;
}

std::string_view storage_class(c10::ScalarType dtype) {
  const StoredDtype* const found = find(&StoredDtype::dtype, dtype);
  return found ? found->storage_class : std::string_view();
}

bool is_storable(c10::ScalarType dtype) {
  const StoredDtype* const found = find(&StoredDtype::dtype, dtype);
  return found && !found->storage_class.empty();
}

}  // namespace lockstep::inline internal
