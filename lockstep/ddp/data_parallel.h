#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/ddp/data_parallel_replicas.h"
#include "lockstep/ddp/distributed_data_parallel.h"

namespace lockstep {

/// Splits each batch over replicas of a module in one process, one replica per device, runs them in
/// threads and gathers their outputs: torch.nn.DataParallel, also for CPUs, where the replicas
/// divide the cores.
///
///     DataParallel model(Net(), {.device_ids = {at::kCPU, at::kCPU}});
///     torch::optim::SGD optimizer(model->parameters(), 1e-3);
///     torch::mse_loss(model(inputs), targets).backward();   // accumulates in the module's .grad
///
/// Tensors among the arguments, also in vectors, optionals, pairs and tuples, are split in
/// dimension `dim` into chunks of ceil(size / replicas). Tensors without dimensions and all other
/// arguments are copied. Outputs are concatenated in the same dimension, scalars into a vector.
///
/// Replica 0 is the module itself, so its running statistics remain. The others are created by
/// clone() at the first call that needs them, so the module and its submodules must be
/// torch::nn::Cloneable. They follow the module's parameters, buffers and train() or eval(), no
/// other changes. On the CPU they use the module's own parameters, not copies: forward must not
/// write to them. Backward runs on one thread per device, on the CPU with all cores per operator.
/// Grad mode and autocast are the caller's.
///
/// Accepts the same kinds of modules as DistributedDataParallel, which is the better choice for
/// training on more than one device.
/// Threads: one at a time.
/// Errors: ReplicaFailed from forward; UsageError for a module that cannot be cloned, for inputs of
/// different batch sizes, and for a module that is not on the first of the devices.
template <class Module>
requires(!ModuleHolder<Module>) class DataParallel {
 public:
  explicit DataParallel(std::shared_ptr<Module> module, const DataParallelOptions& options = {})
      : module_(std::move(module)), replicas_(std::make_unique<ModuleReplicas>(module_, options)) {}

  template <ModuleHolder Holder>
  requires std::same_as<typename Holder::ContainedType, Module>
  explicit DataParallel(const Holder& holder, const DataParallelOptions& options = {})
      : DataParallel(holder.ptr(), options) {}

  explicit DataParallel(Module& module, const DataParallelOptions& options = {})
      : DataParallel(std::shared_ptr<Module>(std::shared_ptr<void>(), &module), options) {}

  explicit DataParallel(Module&& module, const DataParallelOptions& options = {})
      : DataParallel(std::make_shared<Module>(std::move(module)), options) {}

  /// Calls forward of each replica, of any signature, with its part of the arguments, and gathers
  /// the outputs.
  template <class... Args>
  auto forward(const Args&... args) {
    using Output = std::decay_t<decltype(module_->forward(std::declval<std::decay_t<Args>&>()...))>;
    InputScatter scatter = replicas_->scatter();
    const auto add = [&](const at::Tensor& input) { return scatter.add(input), input; };
    (data_parallel::map_tensors<std::decay_t<Args>>(args, add), ...);

    const auto count = static_cast<std::size_t>(scatter.replicas());
    std::vector<std::tuple<std::decay_t<Args>...>> parts;
    for (std::size_t i = 0; i < count; ++i) {
      const auto part = [&](const at::Tensor& input) {
        return scatter.part(static_cast<int>(i), input);
      };
      parts.emplace_back(data_parallel::map_tensors<std::decay_t<Args>>(args, part)...);
    }
    const auto call = [&](int i, torch::nn::Module& replica) -> Output {
      return std::apply(
          [&](auto&... inputs) -> Output {
            return dynamic_cast<Module&>(replica).forward(inputs...);
          },
          parts[static_cast<std::size_t>(i)]);
    };
    if constexpr (std::is_void_v<Output>) {
      replicas_->run(scatter.replicas(), call);
    } else {
      std::vector<std::optional<Output>> outputs(count);
      replicas_->run(scatter.replicas(), [&](int i, torch::nn::Module& replica) {
        outputs[static_cast<std::size_t>(i)] = call(i, replica);
      });
      std::vector<Output> all;
      for (std::optional<Output>& output : outputs) all.push_back(*std::move(output));
      return data_parallel::gather_values(
          all, [&](const std::vector<at::Tensor>& tensors) { return replicas_->gather(tensors); });
    }
  }
  template <class... Args>
  auto operator()(const Args&... args) {
    return forward(args...);
  }

  /// The module's parameters.
  std::vector<at::Tensor> parameters() const { return module_->parameters(); }

  Module* operator->() { return module_.get(); }
  const Module* operator->() const { return module_.get(); }
  Module& operator*() { return *module_; }
  const Module& operator*() const { return *module_; }
  /// The module, which is replica 0.
  const std::shared_ptr<Module>& module() const { return module_; }

 private:
  std::shared_ptr<Module> module_;
  std::unique_ptr<ModuleReplicas> replicas_;
};

template <class Holder>
requires requires {
  typename Holder::ContainedType;
}
DataParallel(const Holder&, const DataParallelOptions& = {})
    ->DataParallel<typename Holder::ContainedType>;
template <class Module>
DataParallel(std::shared_ptr<Module>, const DataParallelOptions& = {}) -> DataParallel<Module>;

}  // namespace lockstep
