#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include "lockstep/rpc/internal/byte_stream.h"

namespace lockstep::rpc::inline internal {

/// Serializes the type of the elements of a list or dict. An unsupported type (a class) becomes
/// Any.
void write_type(const c10::Type& type, ByteWriter& bytes);

/// Parses a type.
/// Errors: UsageError for invalid bytes, and for nesting deeper than 8.
c10::TypePtr read_type(ByteReader& bytes);

/// Whether a list or dict of `type` may hold the value, so that readers by that type are right.
bool fits(const c10::IValue& value, const c10::Type& type);

}  // namespace lockstep::rpc::inline internal
