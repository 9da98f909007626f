#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace lockstep::inline internal {

/// A value in a file: a pickle that names its storages "0", "1", …, and these storages.
struct Pickled {
  std::string pickle;
  std::vector<at::Tensor> storages;
};

/// Pickles a writable_value(). The storages share its memory.
Pickled pickle(const c10::IValue& value);

/// Builds the value of such a pickle. Executes nothing.
/// `next_storage`: returns one storage after the other, as a uint8 tensor.
/// `what`: for error messages.
/// Errors: CorruptFile; what `next_storage` throws.
c10::IValue unpickle_in_order(std::string_view text,
                              const std::function<at::Tensor(std::uint64_t bytes)>& next_storage,
                              const std::string& what);

/// Copies a tree of dicts, lists and plain values with tensors that files can hold: detached, on
/// the CPU, and one dtype per storage.
/// Errors: UsageError that names the first tensor that is sparse, quantized, undefined or of a
/// dtype that files cannot hold.
c10::IValue writable_value(const c10::IValue& value);

}  // namespace lockstep::inline internal
