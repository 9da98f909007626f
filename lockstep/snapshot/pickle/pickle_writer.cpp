#include "lockstep/snapshot/pickle/pickle_writer.h"

#include <algorithm>

#include "lockstep/snapshot/pickle/storage_types.h"

namespace lockstep::inline internal {

void put_tensor(PickleWriter& text, c10::ScalarType dtype, const std::vector<std::int64_t>& shape,
                std::string_view key) {
  const bool is_typed = is_storable(dtype);
  std::uint64_t units = is_typed ? 1 : c10::elementSize(dtype);
  for (const std::int64_t size : shape) units *= static_cast<std::uint64_t>(size);
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * std::max<std::int64_t>(shape[i], 1);
  }
  text.global("torch._utils", is_typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  text.op(PickleOpcode::kMark).op(PickleOpcode::kMark).string("storage");
  if (is_typed) {
    text.global("torch", storage_class(dtype));
  } else {
    text.global("torch.storage", "UntypedStorage");
  }
  text.string(key).string("cpu").number(units);
  text.op(PickleOpcode::kTuple).op(PickleOpcode::kBinPersId);
  text.number(0).numbers(shape).numbers(strides).op(PickleOpcode::kNewFalse);
  text.global("collections", "OrderedDict").op(PickleOpcode::kEmptyTuple).op(PickleOpcode::kReduce);
  if (!is_typed) text.global("torch", dtype_name(dtype));
  text.op(PickleOpcode::kTuple).op(PickleOpcode::kReduce);
}

}  // namespace lockstep::inline internal
