#pragma once

#include <ATen/core/ivalue.h>

namespace lockstep::inline internal {

/// The same tree of dicts, lists and plain values with every tensor as files can hold it: detached,
/// on the CPU, and alone in its storage among dtypes, because a file knows one dtype a storage.
/// Errors: UsageError naming the first tensor that is sparse, quantized, undefined or of a dtype
/// that files cannot hold.
c10::IValue writable_value(const c10::IValue& value);

}  // namespace lockstep::inline internal
