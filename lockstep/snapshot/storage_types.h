#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace lockstep {

/// The dtype of a storage class of Python's torch ("FloatStorage"); nothing for other names. These
/// are the dtypes that snapshots can hold.
std::optional<c10::ScalarType> storage_dtype(std::string_view storage_class);

/// Python's name of a dtype that is_storable(), without the "torch.": "float32".
std::string_view dtype_name(c10::ScalarType dtype);

bool is_storable(c10::ScalarType dtype);

}  // namespace lockstep
