#include "lockstep/snapshot/pickle/pickled.h"

#include <string>
#include <unordered_map>

#include <torch/csrc/jit/serialization/pickler.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/snapshot/internal/value_tree.h"
#include "lockstep/snapshot/pickle/storage_types.h"
#include "lockstep/snapshot/pickle/unpickler.h"

namespace lockstep::inline internal {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw UsageError(
      concat("save '", name, "': ", what,
             " cannot be stored; convert it to a dense tensor of a standard dtype, or write a "
             "safetensors file, which has float8 and unsigned integers too"));
}

}  // namespace

Pickled pickle(const c10::IValue& value) {
  Pickled result;
  // No type tags: Python's weights-only reader refuses the class that they name.
  torch::jit::Pickler pickler(
      [&](const char* data, std::size_t bytes) { result.pickle.append(data, bytes); }, nullptr,
      nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  result.storages = pickler.tensorData();
  return result;
}

c10::IValue unpickle_in_order(std::string_view text,
                              const std::function<at::Tensor(std::uint64_t bytes)>& next_storage,
                              const std::string& what) {
  std::size_t next = 0;
  const auto read = [&](const std::string& key, std::uint64_t bytes) {
    if (parse_number<std::size_t>(key) != next++) {
      throw CorruptFile(concat(what, ": its storages are not in order"));
    }
    return next_storage(bytes);
  };
  return unpickle(text, read, what);
}

c10::IValue writable_value(const c10::IValue& value) {
  std::unordered_map<const c10::StorageImpl*, c10::ScalarType> storage_dtypes;
  return map_tensors(value, [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) refuse(name, "an undefined tensor");
    if (tensor.layout() != at::kStrided || tensor.is_quantized() ||
        !is_storable(tensor.scalar_type())) {
      refuse(name,
             concat("a tensor of dtype ", tensor.dtype().name(), " and layout ", tensor.layout()));
    }
    const at::Tensor result = tensor.detach().resolve_conj().resolve_neg().cpu();
    const auto [known, is_new] =
        storage_dtypes.try_emplace(result.storage().unsafeGetStorageImpl(), result.scalar_type());
    return is_new || known->second == result.scalar_type() ? result : result.clone();
  });
}

}  // namespace lockstep::inline internal
