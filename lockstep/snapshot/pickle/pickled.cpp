#include "lockstep/snapshot/pickle/pickled.h"

#include <torch/csrc/jit/serialization/pickler.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/snapshot/pickle/unpickler.h"

namespace lockstep::inline internal {

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

}  // namespace lockstep::inline internal
