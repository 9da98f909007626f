#include "lockstep/snapshot/pickle/storage_types.h"

#include <algorithm>
#include <array>

namespace lockstep::inline internal {
namespace {

struct StorageType {
  std::string_view storage_class;
  c10::ScalarType dtype;
  std::string_view dtype_name;
};

constexpr std::array<StorageType, 12> kStorageTypes{{
    {"BoolStorage", c10::ScalarType::Bool, "bool"},
    {"ByteStorage", c10::ScalarType::Byte, "uint8"},
    {"CharStorage", c10::ScalarType::Char, "int8"},
    {"ShortStorage", c10::ScalarType::Short, "int16"},
    {"IntStorage", c10::ScalarType::Int, "int32"},
    {"LongStorage", c10::ScalarType::Long, "int64"},
    {"HalfStorage", c10::ScalarType::Half, "float16"},
    {"BFloat16Storage", c10::ScalarType::BFloat16, "bfloat16"},
    {"FloatStorage", c10::ScalarType::Float, "float32"},
    {"DoubleStorage", c10::ScalarType::Double, "float64"},
    {"ComplexFloatStorage", c10::ScalarType::ComplexFloat, "complex64"},
    {"ComplexDoubleStorage", c10::ScalarType::ComplexDouble, "complex128"},
}};

struct UntypedDtype {
  std::string_view name;
  c10::ScalarType dtype;
};

constexpr std::array<UntypedDtype, 9> kUntypedDtypes{{
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

}  // namespace

std::optional<c10::ScalarType> storage_dtype(std::string_view storage_class) {
  for (const StorageType& type : kStorageTypes) {
    if (type.storage_class == storage_class) return type.dtype;
  }
  return std::nullopt;
}

std::optional<c10::ScalarType> untyped_dtype(std::string_view name) {
  for (const UntypedDtype& type : kUntypedDtypes) {
    if (type.name == name) return type.dtype;
  }
  return std::nullopt;
}

std::string_view dtype_name(c10::ScalarType dtype) {
  for (const StorageType& type : kStorageTypes) {
    if (type.dtype == dtype) return type.dtype_name;
  }
  for (const UntypedDtype& type : kUntypedDtypes) {
    if (type.dtype == dtype) return type.name;
  }
  return c10::toString(dtype);
}

bool is_storable(c10::ScalarType dtype) {
  return std::any_of(kStorageTypes.begin(), kStorageTypes.end(),
                     [&](const StorageType& type) { return type.dtype == dtype; });
}

}  // namespace lockstep::inline internal
