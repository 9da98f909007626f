#include "lockstep/snapshot/internal/state_copy.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "lockstep/os/memory/frozen_memory.h"
#include "lockstep/snapshot/internal/value_tree.h"

namespace lockstep::inline internal {
namespace {

/// The absent tensors of a tree, and where their values are.
class FrozenTensors {
 public:
  /// A tensor that stands for the whole storage; undefined if its memory cannot be frozen.
  at::Tensor add(const c10::Storage& storage) {
    if (storage.nbytes() == 0) return {};
    const std::shared_ptr<FreezableMemory> memory = FreezableMemory::find(storage.data());
    if (!memory) return {};
    const auto [found, is_new] = memories_.try_emplace(memory.get());
    if (is_new) found->second = memory->freeze();
    if (!found->second) return {};
    const auto bytes = static_cast<std::int64_t>(storage.nbytes());
    tensors_.push_back({.absent = absent_tensor({bytes}, {1}, at::kByte),
                        .first = storage.data(),
                        .memory = found->second});
    return tensors_.back().absent;
  }

  bool empty() const { return tensors_.empty(); }

  /// Holds one tensor at a time.
  void read(const TakeWhole& take) {
    std::size_t most = 0;
    for (const Frozen& one : tensors_) most = std::max(most, one.absent.nbytes());
    const std::unique_ptr<std::byte[]> buffer(new std::byte[most]);
    for (const Frozen& one : tensors_) {
      take(one.absent, [&] {
        one.memory->read(one.first, one.absent.nbytes(), buffer.get());
        return at::from_blob(buffer.get(), {one.absent.numel()}, at::TensorOptions(at::kByte));
      });
    }
    tensors_.clear();
    memories_.clear();
  }

 private:
  struct Frozen {
    at::Tensor absent;
    const void* first;
    std::shared_ptr<const FrozenMemory> memory;
  };
  /// Null: it cannot be frozen.
  std::map<const FreezableMemory*, std::shared_ptr<const FrozenMemory>> memories_;
  std::vector<Frozen> tensors_;
};

}  // namespace

TakenState StateCopy::take(const c10::IValue& writable) {
  used_ = 0;
  const auto frozen = std::make_shared<FrozenTensors>();
  std::unordered_map<const c10::StorageImpl*, at::Tensor> taken;
  TakenState state;
  state.tree = map_tensors(writable, [&](const std::string&, const at::Tensor& tensor) {
    const c10::Storage& storage = tensor.storage();
    // From a GPU, or put together for this: nobody else can change it.
    if (storage.use_count() == 1) return tensor;
    const auto [known, is_new] = taken.try_emplace(storage.unsafeGetStorageImpl());
    if (is_new) {
      known->second = frozen->add(storage);
      if (!known->second.defined()) known->second = copy_of(storage);
    }
    at::Tensor result = at::empty({0}, tensor.options());
    result.set_(known->second.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
    return result;
  });
  buffers_.resize(used_);
  if (!frozen->empty()) {
    state.gather = [frozen](const TakeWhole& take) { frozen->read(take); };
  }
  return state;
}

at::Tensor StateCopy::copy_of(const c10::Storage& storage) {
  const auto bytes = static_cast<std::int64_t>(storage.nbytes());
  if (used_ == buffers_.size()) buffers_.emplace_back();
  at::Tensor& buffer = buffers_[used_++];
  if (!buffer.defined() || buffer.numel() != bytes) {
    buffer = at::Tensor();  // Before the new one is made: never both.
    buffer = at::empty({bytes}, at::kByte);
  }
  if (bytes > 0) std::memcpy(buffer.mutable_data_ptr(), storage.data(), storage.nbytes());
  return buffer;
}

}  // namespace lockstep::inline internal
