#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace lockstep::inline internal {

/// The dtype of a storage class of Python's torch ("FloatStorage"); nullopt for other names.
/// Snapshots can hold these dtypes.
std::optional<c10::ScalarType> storage_dtype(std::string_view storage_class);

/// A dtype without a storage class, by Python's name ("float8_e4m3fn"); nullopt for other names.
/// torch.save writes such tensors over bytes, LibTorch's pickler in a form that Python refuses:
/// they are read, not written.
std::optional<c10::ScalarType> untyped_dtype(std::string_view name);

/// Python's name of one of these dtypes without "torch.": "float32".
std::string_view dtype_name(c10::ScalarType dtype);

/// The dtype, of these, with Python's name; nullopt for other names.
std::optional<c10::ScalarType> dtype_of_name(std::string_view name);

/// The storage class of a dtype ("FloatStorage"); empty if it has none.
std::string_view storage_class(c10::ScalarType dtype);

/// Whether a dtype has a storage class.
bool is_storable(c10::ScalarType dtype);

}  // namespace lockstep::inline internal
