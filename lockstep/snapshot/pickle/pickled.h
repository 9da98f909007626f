#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace lockstep::inline internal {

/// A value as files have it: a pickle that names storages "0", "1", …, and tensors over these.
struct Pickled {
  std::string pickle;
  std::vector<at::Tensor> storages;
};

/// Of a writable_value(). The tensors share its memory.
Pickled pickle(const c10::IValue& value);

/// The value of such a pickle. `next_storage` makes one storage after the other, as a byte tensor.
/// `what`: for errors. Nothing is executed. Errors: CorruptFile; those of `next_storage`.
c10::IValue unpickle_in_order(std::string_view text,
                              const std::function<at::Tensor(std::uint64_t bytes)>& next_storage,
                              const std::string& what);

/// The same tree of dicts, lists and plain values with every tensor as files can hold it: detached,
/// on the CPU, and alone in its storage among dtypes, because a file knows one dtype a storage.
/// Errors: UsageError naming the first tensor that is sparse, quantized, undefined or of a dtype
/// that files cannot hold.
c10::IValue writable_value(const c10::IValue& value);

}  // namespace lockstep::inline internal
