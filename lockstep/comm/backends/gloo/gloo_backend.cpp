#include "lockstep/comm/backends/gloo/gloo_backend.h"

#include <algorithm>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "lockstep/base/env.h"
#include "lockstep/os/batch_scheduling.h"

namespace lockstep {
namespace {

using c10d::ProcessGroupGloo;

// Gloo adds bool as bytes, which leaves values other than 0 and 1. On bytes of 0 and 1 the logical
// operations are minimum and maximum.
c10d::ReduceOp op_for_bool(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::BOR:
      return c10d::ReduceOp::MAX;
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::BAND:
      return c10d::ReduceOp::MIN;
    default:
      return op;
  }
}

// The options of a reduction over the bytes of bools.
template <class Options>
Options for_bool(Options options) {
  options.reduceOp = op_for_bool(options.reduceOp);
  return options;
}

bool is_bool(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool;
}

at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.view(at::kByte);
}

std::vector<at::Tensor> as_bytes(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& tensor : tensors) bytes.push_back(as_bytes(tensor));
  return bytes;
}

// A collective whose result is copied to where it belongs by whoever waits for it.
class CopyingWork final : public c10d::Work {
 public:
  CopyingWork(c10::intrusive_ptr<c10d::Work> work, at::Tensor flat, std::vector<at::Tensor> outputs)
      : work_(std::move(work)), flat_(std::move(flat)), outputs_(std::move(outputs)) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool complete = work_->wait(timeout);
    std::call_once(copied_, [this] { copy_out(); });
    return complete;
  }

 private:
  void copy_out() {
    std::int64_t offset = 0;
    for (const at::Tensor& output : outputs_) {
      output.copy_(flat_.narrow(0, offset, output.numel()).view(output.sizes()));
      offset += output.numel();
    }
  }

  const c10::intrusive_ptr<c10d::Work> work_;
  const at::Tensor flat_;
  const std::vector<at::Tensor> outputs_;
  std::once_flag copied_;
};

class GlooBackend final : public ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  // Work that has ended counts no more, even where its thread has not yet let go of it.
  bool is_busy() {
    const std::lock_guard lock(workMutex_);
    const auto running = [](const auto& work) { return work.defined() && !work->isCompleted(); };
    return !workQueue_.empty() ||
           std::any_of(workInProgress_.begin(), workInProgress_.end(), running);
  }

  void abort() override {
    for (const auto& context : contexts_) context->closeConnections();
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    if (!is_bool(tensors[0])) return ProcessGroupGloo::allreduce(tensors, options);
    auto bytes = as_bytes(tensors);
    return ProcessGroupGloo::allreduce(bytes, for_bool(options));
  }

  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                        const c10d::ReduceOptions& options) override {
    if (!is_bool(tensors[0])) return ProcessGroupGloo::reduce(tensors, options);
    auto bytes = as_bytes(tensors);
    return ProcessGroupGloo::reduce(bytes, for_bool(options));
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
      const c10d::ReduceScatterOptions& options) override {
    if (!is_bool(outputs[0])) return ProcessGroupGloo::reduce_scatter(outputs, inputs, options);
    auto output_bytes = as_bytes(outputs);
    std::vector<std::vector<at::Tensor>> input_bytes{as_bytes(inputs[0])};
    return ProcessGroupGloo::reduce_scatter(output_bytes, input_bytes, for_bool(options));
  }

  // Gloo's own takes tensors of one size only.
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs,
                                          std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& options) override {
    std::vector<at::Tensor> flat_inputs;
    std::vector<std::int64_t> input_counts;
    std::vector<std::int64_t> output_counts;
    std::int64_t output_total = 0;
    for (const at::Tensor& input : inputs) {
      flat_inputs.push_back(input.view({-1}));
      input_counts.push_back(input.numel());
    }
    for (const at::Tensor& output : outputs) {
      output_counts.push_back(output.numel());
      output_total += output.numel();
    }
    at::Tensor flat_input = at::cat(flat_inputs);
    at::Tensor flat_output = at::empty({output_total}, outputs[0].options());
    auto work = alltoall_base(flat_output, flat_input, output_counts, input_counts, options);
    return c10::make_intrusive<CopyingWork>(std::move(work), flat_output, outputs);
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    if (!is_bool(output)) return ProcessGroupGloo::_reduce_scatter_base(output, input, options);
    auto output_bytes = as_bytes(output);
    auto input_bytes = as_bytes(input);
    return ProcessGroupGloo::_reduce_scatter_base(output_bytes, input_bytes, for_bool(options));
  }
};

// In a CUDA build of LibTorch, Gloo copies CUDA tensors through pinned memory.
#ifdef LOCKSTEP_WITH_CUDA
constexpr bool kStagesCuda = true;
#else
constexpr bool kStagesCuda = false;
#endif

std::shared_ptr<::gloo::transport::Device> make_device(const BackendConfig& config) {
  const std::string& address = config.local_address;
  // A job on loopback stays there, whatever interface the environment names for others.
  const bool on_loopback = address.starts_with("127.") || address == "::1";
  const auto interface = env::text(env::kGlooSocketIfname);
  if (interface && !on_loopback) return ProcessGroupGloo::createDeviceForInterface(*interface);
  if (!address.empty()) return ProcessGroupGloo::createDeviceForHostname(address);
  return ProcessGroupGloo::createDefaultDevice();
}

}  // namespace

BackendInstance make_gloo_backend(const BackendConfig& config) {
  auto options = ProcessGroupGloo::Options::create(config.connect_timeout);
  options->group_name = config.group_name;
  // Gloo's threads that woke up would interrupt the one that is writing, and then look in vain,
  // again and again, for the lock that it holds, until their share of the processor is used up.
  const BatchScheduling threads_do_not_interrupt;
  options->devices.push_back(make_device(config));
  auto backend =
      c10::make_intrusive<GlooBackend>(config.store, config.rank, config.world_size, options);
  try {
    // Without this the first rank to be connected may end, and with it the store in which the
    // others still look for addresses.
    backend->barrier()->wait();
  } catch (...) {
    backend->abort();
    backend.release();  // Kept: the destructor would wait for the barrier.
    throw;
  }
  backend->setTimeout(config.timeout);
  return {.backend = backend, .takes_cuda = kStagesCuda, .is_busy = [gloo = backend.get()] {
            return gloo->is_busy();
          }};
}

c10::Device gloo_device(int) {
  return c10::kCPU;
}

}  // namespace lockstep
