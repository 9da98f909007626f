#include <cmath>
#include <limits>

#include <ATen/ops/tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/process/process_usage.h"
#include "lockstep/train/accelerator.h"
#include "lockstep/train/callbacks.h"

namespace lockstep {
namespace {

struct Memory {
  double used_bytes = 0;
  double total_bytes = 0;
};

Memory memory_of(const c10::Device& device) {
  if (device.is_cpu()) {
    const auto usage = process_usage(::getpid());
    return {.used_bytes = usage ? static_cast<double>(usage->resident_bytes) : 0,
            .total_bytes = static_cast<double>(total_memory_bytes())};
  }
  auto* const allocator = at::getDeviceAllocator(device.type());
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto index = device.has_index() ? device.index() : c10::DeviceIndex{0};
  return {
      .used_bytes = static_cast<double>(allocator->getDeviceStats(index).reserved_bytes[kAll].peak),
      .total_bytes = static_cast<double>(allocator->getMemoryInfo(index).second)};
}

}  // namespace

void ThroughputMonitor::on_log(TrainerState& state, Metrics& metrics) {
  constexpr double kGib = 1 << 30;
  const bool has_norm = find_metric(metrics, "grad_norm") != nullptr;
  double norm = std::numeric_limits<double>::quiet_NaN();
  at::Tensor here;
  const bool counts = state.accelerator.run_on_survivors([&] {
    // Gradients stay until the next step begins.
    if (!has_norm) norm = state.accelerator.get_total_norm(state.module.parameters());
    const ProcessGroup& group = state.accelerator.process_group();
    const Memory memory = memory_of(group.device());
    at::Tensor most =
        at::tensor({memory.used_bytes / kGib, 100 * memory.used_bytes / memory.total_bytes},
                   at::kDouble)
            .to(group.device());
    group.all_reduce(most, {.op = ReduceOp::kMax, .name = "memory"});
    here = most.cpu();
  });
  if (!counts) return;
  if (!std::isnan(norm)) metrics.emplace_back("grad_norm", norm);
  metrics.emplace_back("memory_gib", here.const_data_ptr<double>()[0]);
  metrics.emplace_back("memory_percent", here.const_data_ptr<double>()[1]);
  const double* const samples = find_metric(metrics, "samples_per_second");
  if (options_.tokens_per_sample > 0 && samples != nullptr) {
    metrics.emplace_back("tokens_per_second",
                         *samples * static_cast<double>(options_.tokens_per_sample));
  }
}

}  // namespace lockstep
