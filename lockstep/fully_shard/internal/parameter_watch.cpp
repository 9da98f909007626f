#include "lockstep/fully_shard/internal/parameter_watch.h"

#include <unordered_map>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorImpl.h>
#include <torch/library.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/mutex.h"

namespace lockstep::inline internal {
namespace {

// LibTorch keeps this key for extensions and implements no operator under it. It comes before
// autograd and autocast, so that these see tensors that have their memory.
constexpr c10::DispatchKey kWatched = c10::DispatchKey::DeferredInit;

struct Watchers {
  Mutex mutex;
  std::unordered_map<const c10::StorageImpl*, ParameterWatcher*> by_storage
      LOCKSTEP_GUARDED_BY(mutex);

  ParameterWatcher* find(const at::Tensor& tensor) {
    const MutexLock lock(mutex);
    const auto found = by_storage.find(tensor.storage().unsafeGetStorageImpl());
    return found == by_storage.end() ? nullptr : found->second;
  }
};

Watchers& watchers() {
  static Watchers instance;
  return instance;
}

void announce(const at::Tensor& tensor, const char* operation) {
  if (!tensor.defined() || !tensor.key_set().has(kWatched)) return;
  ParameterWatcher* const watcher = watchers().find(tensor);
  if (watcher == nullptr) {
    throw UsageError(concat("fully_shard: ", operation,
                            " got a parameter whose FullySharded is gone, and its values with it; "
                            "keep the FullySharded as long as its module"));
  }
  watcher->before_use(tensor, operation);
}

void announce_all(const c10::IValue& value, const char* operation) {
  if (value.isTensor()) {
    announce(value.toTensor(), operation);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) announce_all(item, operation);
  }
}

// What every operator runs that gets a watched tensor.
void announce_arguments(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const char* const operation = op.schema().name().c_str();
  const PauseWatching pause;
  for (const c10::IValue& argument : torch::jit::last(*stack, op.schema().arguments().size())) {
    announce_all(argument, operation);
  }
  op.callBoxed(stack);
}

void watch_operators() {
  static const auto library = [] {
    torch::Library made(torch::Library::IMPL, "_", kWatched, __FILE__, __LINE__);
    made.fallback(torch::CppFunction::makeFromBoxedFunction<&announce_arguments>());
    return made;
  }();
}

}  // namespace

PauseWatching::PauseWatching() : guard_(c10::DispatchKeySet(kWatched)) {}

StorageWatch::StorageWatch(const at::Tensor& full, ParameterWatcher& watcher) : full_(full) {
  watch_operators();
  const MutexLock lock(watchers().mutex);
  watchers().by_storage.emplace(full_.storage().unsafeGetStorageImpl(), &watcher);
}

StorageWatch::~StorageWatch() {
  const MutexLock lock(watchers().mutex);
  watchers().by_storage.erase(full_.storage().unsafeGetStorageImpl());
}

at::Tensor watched_view(const at::Tensor& full, at::IntArrayRef sizes, at::IntArrayRef strides,
                        std::int64_t offset) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(full.storage()), full.key_set() | c10::DispatchKeySet(kWatched), full.dtype());
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(sizes, strides);
  return at::Tensor(std::move(impl));
}

}  // namespace lockstep::inline internal
