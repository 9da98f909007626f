#include "lockstep/nn/internal/batch_norm_interception.h"

#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/ops/batch_norm_native.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <torch/library.h>
#include <torch/nn/module.h>

#include "lockstep/base/internal/mutex.h"

namespace lockstep::inline internal {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;

struct Interception {
  std::shared_ptr<const SyncLayer> layer;
  std::weak_ptr<const torch::nn::Module> module;
};

// By tensor. An entry's weak reference keeps the address from being used for another tensor.
struct Interceptions {
  struct Entry {
    WeakTensor tensor;
    std::shared_ptr<const Interception> interception;
  };
  Mutex mutex;
  std::unordered_map<const at::TensorImpl*, Entry> entries LOCKSTEP_GUARDED_BY(mutex);

  std::shared_ptr<const Interception> find(const at::Tensor& tensor) {
    if (!tensor.defined()) return nullptr;
    const MutexLock lock(mutex);
    const auto found = entries.find(tensor.unsafeGetTensorImpl());
    return found == entries.end() ? nullptr : found->second.interception;
  }
};

Interceptions& interceptions() {
  static Interceptions instance;
  return instance;
}

std::shared_ptr<const Interception> find_interception(const at::Tensor& weight,
                                                      const at::Tensor& running_mean) {
  auto found = interceptions().find(weight);
  return found ? found : interceptions().find(running_mean);
}

at::Tensor batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias,
                      const std::optional<at::Tensor>& running_mean,
                      const std::optional<at::Tensor>& running_var, bool training, double momentum,
                      double eps, bool cudnn_enabled) {
  const auto value = [](const std::optional<at::Tensor>& tensor) {
    return tensor.value_or(at::Tensor());
  };
  if (training) {
    const auto found = find_interception(value(weight), value(running_mean));
    const auto module = found ? found->module.lock() : nullptr;
    if (found && (!module || module->is_training())) {
      return sync_batch_norm(found->layer, {.input = input,
                                            .weight = value(weight),
                                            .bias = value(bias),
                                            .running_mean = value(running_mean),
                                            .running_var = value(running_var),
                                            .momentum = momentum,
                                            .eps = eps});
    }
  }
  return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum,
                                eps, cudnn_enabled);
}

// The operator is a composite: without this LibTorch runs at::native::batch_norm under each of
// these keys. With and without autograd: inference mode leaves autograd out.
void implement_operator() {
  static const auto libraries = [] {
    std::vector<torch::Library> made;
    for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::CPU,
                           c10::DispatchKey::AutogradCUDA, c10::DispatchKey::CUDA}) {
      made.emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      made.back().impl("batch_norm", TORCH_FN(batch_norm));
    }
    return made;
  }();
}

}  // namespace

void intercept_batch_norm(const at::Tensor& weight, const at::Tensor& running_mean,
                          std::shared_ptr<const SyncLayer> layer,
                          std::weak_ptr<const torch::nn::Module> module) {
  implement_operator();
  const auto interception =
      std::make_shared<const Interception>(Interception{std::move(layer), std::move(module)});
  const MutexLock lock(interceptions().mutex);
  for (const at::Tensor& tensor : {weight, running_mean}) {
    if (!tensor.defined()) continue;
    interceptions().entries.insert_or_assign(
        tensor.unsafeGetTensorImpl(),
        Interceptions::Entry{WeakTensor(tensor.getIntrusivePtr()), interception});
  }
}

bool is_intercepted(const at::Tensor& weight, const at::Tensor& running_mean) {
  return find_interception(weight, running_mean) != nullptr;
}

void release_batch_norm(const at::Tensor& weight, const at::Tensor& running_mean) {
  const MutexLock lock(interceptions().mutex);
  for (const at::Tensor& tensor : {weight, running_mean}) {
    if (tensor.defined()) interceptions().entries.erase(tensor.unsafeGetTensorImpl());
  }
}

void forget_dead_layers() {
  const MutexLock lock(interceptions().mutex);
  std::erase_if(interceptions().entries,
                [](const auto& item) { return item.second.tensor.expired(); });
}

}  // namespace lockstep::inline internal
