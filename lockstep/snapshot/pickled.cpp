#include "lockstep/snapshot/pickled.h"

#include <torch/csrc/jit/serialization/pickler.h>

namespace lockstep {

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

}  // namespace lockstep
