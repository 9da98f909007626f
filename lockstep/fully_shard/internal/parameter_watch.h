#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lockstep::inline internal {

/// Is called before an operator of LibTorch gets watched tensors, or views of them: in forward, in
/// backward with tensors that autograd saved, and wherever else the program uses them.
/// Threads: called on the thread that runs the operator. What it throws, the operator throws.
class ParameterWatcher {
 public:
  /// `arguments`: all that the operator gets of this watcher's storages.
  /// `written`: one of these that the operator writes to; null: none.
  virtual void before_use(const std::vector<at::Tensor>& arguments, const at::Tensor* written,
                          const char* operation) = 0;

 protected:
  ~ParameterWatcher() = default;
};

/// Watches the tensors that watched_view makes of `full`'s storage.
/// Lifetime: the watcher must outlive it. Tensors that outlive it are refused by every operator.
class StorageWatch {
 public:
  StorageWatch(const at::Tensor& full, ParameterWatcher& watcher);
  ~StorageWatch();
  StorageWatch(const StorageWatch&) = delete;
  StorageWatch& operator=(const StorageWatch&) = delete;

 private:
  const at::Tensor full_;
};

/// A tensor over `full`'s storage that operators announce: it has a dispatch key of its own, which
/// its views and what autograd saves of it inherit, and results of operators do not.
at::Tensor watched_view(const at::Tensor& full, at::IntArrayRef sizes, at::IntArrayRef strides,
                        std::int64_t offset);

/// While it lives, operators of this thread announce nothing.
class PauseWatching {
 public:
  PauseWatching();

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace lockstep::inline internal
