#include "lockstep/ddp/data_parallel_replicas.h"

#include <mutex>
#include <string_view>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/error_text.h"
#include "lockstep/ddp/internal/data_parallel_plan.h"
#include "lockstep/ddp/internal/data_parallel_threads.h"
#include "lockstep/os/memory/freed_memory.h"

namespace lockstep {
namespace {

using torch::autograd::Edge;

std::optional<c10::Device> device_of(const torch::nn::Module& module) {
  for (const at::Tensor& tensor : module.parameters()) return tensor.device();
  for (const at::Tensor& tensor : module.buffers()) return tensor.device();
  return std::nullopt;
}

std::vector<c10::Device> default_devices(const torch::nn::Module& module) {
  const auto device = device_of(module);
  if (!device || device->is_cpu()) {
    return std::vector<c10::Device>(static_cast<std::size_t>(at::get_num_threads()), at::kCPU);
  }
  const c10::impl::VirtualGuardImpl guard(device->type());
  std::vector<c10::Device> devices;
  for (c10::DeviceIndex i = 0; i < guard.deviceCount(); ++i) {
    devices.emplace_back(device->type(), i);
  }
  return devices;
}

/// To make modules takes random numbers, which the program should not miss.
class KeptRandomState {
 public:
  KeptRandomState() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    state_ = generator.get_state();
  }
  ~KeptRandomState() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state_);
  }
  KeptRandomState(const KeptRandomState&) = delete;
  KeptRandomState& operator=(const KeptRandomState&) = delete;

 private:
  at::Tensor state_;
};

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

std::string what_of(const std::exception& error) {
  return first_line(error_text(error));
}

/// Lets a replica's tensor be `source` on its own device: with the same memory where that is there,
/// and such that gradients flow on to `source`. Grad mode counts when the replica is used, not
/// here.
void become(const at::Tensor& replica, const at::Tensor& source) {
  namespace impl = torch::autograd::impl;
  const c10::AutoGradMode enable_grad(true);
  const at::Tensor local = source.to(replica.device());
  replica.set_data(local.detach());
  // What changes `source` in place before backward is noticed in the replica's graph too.
  replica.unsafeGetTensorImpl()->set_version_counter(impl::version_counter(source));
  impl::set_gradient_edge(replica, local.requires_grad() ? impl::gradient_edge(local) : Edge());
  if (!local.requires_grad()) replica.set_requires_grad(false);
}

/// What of the caller's thread a replica's thread takes over: grad mode, whether autocast is on and
/// to what, and the like.
struct CallerState {
  explicit CallerState(c10::DeviceType device)
      : autocast_device(device), autocast_dtype(at::autocast::get_autocast_dtype(device)) {}

  c10::DeviceType autocast_device;
  at::ScalarType autocast_dtype;
  at::ThreadLocalState switches;
};

/// Until a call that needs one a thread has no context of its CUDA device, of which cuBLAS warns.
void make_context_current(const c10::Stream& stream) {
  if (!stream.device().is_cpu()) stream.query();
}

std::vector<c10::Stream> current_streams(const std::vector<c10::Device>& devices) {
  std::vector<c10::Stream> streams;
  for (const c10::Device device : devices) {
    streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  return streams;
}

}  // namespace

void InputScatter::add(const at::Tensor& input) {
  if (!input.defined() || input.dim() == 0) return;
  if (dim_ >= input.dim() || dim_ < -input.dim()) {
    throw UsageError(concat("DataParallel: an input of shape ", input.sizes(), " has no dimension ",
                            dim_, " to be split in; set dim to that of the batch"));
  }
  const auto chunks =
      static_cast<int>(scatter_batch(input.size(dim_), static_cast<int>(devices_.size())).size());
  if (chunks_ && *chunks_ != chunks) {
    throw UsageError(concat("DataParallel: an input of shape ", input.sizes(), " makes ", chunks,
                            " chunks in dimension ", dim_, ", those before it ", *chunks_,
                            "; give all tensors the same batch size"));
  }
  chunks_ = chunks;
}

at::Tensor InputScatter::part(int replica, const at::Tensor& input) const {
  const auto index = static_cast<std::size_t>(replica);
  if (!input.defined()) return input;
  if (input.dim() == 0) return input.to(devices_[index]);
  const BatchChunk chunk =
      scatter_batch(input.size(dim_), static_cast<int>(devices_.size()))[index];
  const at::Tensor part = replicas() == 1 ? input : input.narrow(dim_, chunk.offset, chunk.length);
  return part.to(devices_[index], input.scalar_type(), /*non_blocking=*/true);
}

/// A clone and what its tensors follow.
struct ModuleReplicas::Replica {
  std::shared_ptr<torch::nn::Module> module;
  /// Of the module and of the clone, in the same order; handles.
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
};

ModuleReplicas::ModuleReplicas(std::shared_ptr<torch::nn::Module> module,
                               const DataParallelOptions& options)
    : module_(std::move(module)), output_device_(at::kCPU), dim_(options.dim) {
  if (!module_) throw UsageError("DataParallel: the module is null");
  devices_ = options.device_ids.empty() ? default_devices(*module_) : options.device_ids;
  output_device_ = options.output_device.value_or(devices_[0]);
  replicas_.resize(devices_.size());
  check_device();
  keep_freed_memory();
}

ModuleReplicas::~ModuleReplicas() = default;

void ModuleReplicas::check_device() const {
  const auto device = device_of(*module_);
  if (!device || *device == devices_[0]) return;
  throw UsageError(concat("DataParallel: the module is on ", *device,
                          ", the first of the devices is ", devices_[0],
                          "; move the module there with to() first"));
}

std::unique_ptr<ModuleReplicas::Replica> ModuleReplicas::make_replica(c10::Device device) const {
  auto replica = std::make_unique<Replica>();
  try {
    const KeptRandomState random_state;
    replica->module = module_->clone(device);
  } catch (const c10::Error& error) {
    throw UsageError(concat("DataParallel: module ", module_->name(),
                            " cannot be cloned: ", what_of(error),
                            "; derive it and its submodules from "
                            "torch::nn::Cloneable and register everything in reset()"));
  }
  const auto parameters = module_->named_parameters();
  replica->parameters = replica->module->parameters();
  replica->buffers = replica->module->buffers();
  replica->modules = replica->module->modules();
  bool is_like = replica->parameters.size() == parameters.size() &&
                 replica->buffers.size() == module_->buffers().size() &&
                 replica->modules.size() == module_->modules().size();
  for (std::size_t i = 0; is_like && i < parameters.size(); ++i) {
    is_like = !parameters[i].value().is_same(replica->parameters[i]);
  }
  if (is_like) return replica;
  throw UsageError(
      concat("DataParallel: the clone of module ", module_->name(),
             " is not a copy of its parameters, buffers and submodules; derive it from "
             "torch::nn::Cloneable and register everything in reset()"));
}

torch::nn::Module& ModuleReplicas::prepare(int index) {
  if (index == 0) return *module_;
  const auto place = static_cast<std::size_t>(index);
  std::unique_ptr<Replica>& replica = replicas_[place];
  const auto parameters = module_->parameters();
  const auto buffers = module_->buffers();
  const auto modules = module_->modules();
  if (!replica || replica->parameters.size() != parameters.size() ||
      replica->buffers.size() != buffers.size() || replica->modules.size() != modules.size()) {
    replica = make_replica(devices_[place]);
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    become(replica->parameters[i], parameters[i]);
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const at::NoGradGuard no_grad;
    replica->buffers[i].set_data(buffers[i].detach().to(devices_[place], buffers[i].scalar_type(),
                                                        /*non_blocking=*/false, /*copy=*/true));
  }
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (replica->modules[i]->is_training() != modules[i]->is_training()) {
      replica->modules[i]->train(modules[i]->is_training());
    }
  }
  return *replica->module;
}

void ModuleReplicas::run(int count, const std::function<void(int, torch::nn::Module&)>& forward) {
  check_device();
  if (count == 1) return forward(0, *module_);
  std::vector<torch::nn::Module*> modules;
  for (int i = 0; i < count; ++i) modules.push_back(&prepare(i));
  if (!threads_) {
    threads_ = std::make_unique<ReplicaThreads>(
        divide_threads(at::get_num_threads(), static_cast<int>(devices_.size())));
  }
  const CallerState caller(devices_[0].type());
  const std::vector<c10::Stream> streams = current_streams(devices_);
  const auto failures = threads_->run(count, [&](int i) {
    const auto place = static_cast<std::size_t>(i);
    const at::ThreadLocalStateGuard switches(caller.switches);
    at::autocast::set_autocast_dtype(caller.autocast_device, caller.autocast_dtype);
    const c10::StreamGuard stream(streams[place]);
    make_context_current(streams[place]);
    forward(i, *modules[place]);
  });
  for (int i = 0; i < count; ++i) {
    const auto& failure = failures[static_cast<std::size_t>(i)];
    if (!failure) continue;
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      std::throw_with_nested(
          ReplicaFailed(concat("DataParallel: replica ", i, " of ", count, " on ",
                               devices_[static_cast<std::size_t>(i)], ": ", what_of(error)),
                        i));
    }
  }
}

at::Tensor ModuleReplicas::gather(const std::vector<at::Tensor>& outputs) const {
  if (outputs.size() == 1 && outputs[0].defined()) return outputs[0].to(output_device_);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& output : outputs) {
    if (!output.defined()) continue;
    parts.push_back(output.dim() == 0 ? output.unsqueeze(0).to(output_device_)
                                      : output.to(output_device_));
  }
  if (parts.empty()) return {};
  if (parts.size() != outputs.size()) {
    throw UsageError(
        "DataParallel: some replicas returned a tensor and some an undefined one; let forward "
        "return it for every part of a batch or for none");
  }
  return at::cat(parts, outputs[0].dim() == 0 ? 0 : dim_);
}

}  // namespace lockstep
