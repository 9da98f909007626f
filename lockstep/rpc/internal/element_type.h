#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include "lockstep/rpc/internal/byte_stream.h"

namespace lockstep::rpc::inline internal {

/// The types that elements of lists and dicts have, in messages. One that is not known there (a
/// class) becomes Any.
void write_type(const c10::Type& type, ByteWriter& bytes);

/// Errors: UsageError for what is no type, or one nested deeper than 8.
c10::TypePtr read_type(ByteReader& bytes);

/// Whether a list or dict of `type` may hold the value, so that whoever reads it by that type finds
/// what it says.
bool fits(const c10::IValue& value, const c10::Type& type);

}  // namespace lockstep::rpc::inline internal
