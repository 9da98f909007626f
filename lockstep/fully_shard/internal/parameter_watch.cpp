#include "lockstep/fully_shard/internal/parameter_watch.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

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

// What an operator gets of the storages of one watcher.
struct Uses {
  ParameterWatcher* watcher = nullptr;
  std::vector<at::Tensor> arguments = {};
  const at::Tensor* written = nullptr;
};

void add_use(std::vector<Uses>& all, const at::Tensor& tensor, bool is_written,
             const char* operation) {
  if (!tensor.defined() || !tensor.key_set().has(kWatched)) return;
  ParameterWatcher* const watcher = watchers().find(tensor);
  if (watcher == nullptr) {
    throw UsageError(concat("fully_shard: ", operation,
                            " got a parameter whose FullySharded is gone, and its values with it; "
                            "keep the FullySharded as long as its module"));
  }
  auto uses = std::ranges::find(all, watcher, &Uses::watcher);
  if (uses == all.end()) uses = all.insert(all.end(), Uses{.watcher = watcher});
  uses->arguments.push_back(tensor);
  if (is_written) uses->written = &tensor;
}

void add_uses(std::vector<Uses>& all, const c10::IValue& value, bool is_written,
              const char* operation) {
  if (value.isTensor()) {
    add_use(all, value.toTensor(), is_written, operation);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) add_uses(all, item, is_written, operation);
  }
}

// What every operator runs that gets a watched tensor.
void announce_arguments(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const char* const operation = op.schema().name().c_str();
  const PauseWatching pause;
  const auto& declared = op.schema().arguments();
  const auto values = torch::jit::last(*stack, declared.size());
  std::vector<Uses> all;
  for (std::size_t i = 0; i < declared.size(); ++i) {
    const c10::AliasInfo* const alias = declared[i].alias_info();
    add_uses(all, values[i], alias != nullptr && alias->isWrite(), operation);
  }
  for (const Uses& uses : all) uses.watcher->before_use(uses.arguments, uses.written, operation);
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
