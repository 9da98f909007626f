#include "lockstep/snapshot/internal/gathered_state.h"

#include <map>

#include <ATen/ops/empty.h>

#include "lockstep/snapshot/internal/value_tree.h"

namespace lockstep::inline internal {

at::Tensor absent_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  const at::Tensor tensor = at::empty({0}, dtype);
  const auto bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes)) * tensor.element_size();
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                             c10::DataPtr(nullptr, at::kCPU), /*allocator=*/nullptr,
                             /*resizable=*/false);
  return at::empty({0}, dtype).set_(storage, 0, sizes, strides);
}

bool is_absent(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.storage().nbytes() > 0 &&
         tensor.storage().data() == nullptr;
}

c10::IValue with_whole_tensors(const c10::IValue& tree, const GatheredState& state) {
  std::map<const c10::StorageImpl*, at::Tensor> whole_tensors;
  visit_tensors(tree, [&](const std::string&, const at::Tensor& tensor) {
    if (is_absent(tensor)) whole_tensors[tensor.storage().unsafeGetStorageImpl()];
  });
  state.gather([&](const at::Tensor& absent, const std::function<at::Tensor()>& whole) {
    const auto found = whole_tensors.find(absent.storage().unsafeGetStorageImpl());
    if (found != whole_tensors.end()) found->second = whole();
  });
  return map_tensors(tree, [&](const std::string&, const at::Tensor& tensor) {
    return is_absent(tensor) ? whole_tensors.at(tensor.storage().unsafeGetStorageImpl()) : tensor;
  });
}

void gather_while(const GatheredState& state,
                  const std::function<void(const GatherWhole&)>& write) {
  bool has_gathered = false;
  try {
    write([&](const TakeWhole& take) {
      has_gathered = true;
      state.gather(take);
    });
  } catch (...) {
    if (!has_gathered) {
      state.gather([](const at::Tensor&, const std::function<at::Tensor()>&) {});
    }
    throw;
  }
}

}  // namespace lockstep::inline internal
