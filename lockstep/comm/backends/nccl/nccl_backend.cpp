#include "lockstep/comm/backends/nccl/nccl_backend.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/backends/nccl/nccl_work.h"
#include "lockstep/comm/internal/c10d_backend.h"
#include "lockstep/comm/internal/error_text.h"

namespace lockstep::inline internal {
namespace {

using std::chrono_literals::operator""s;

// The watchdog of LibTorch ends the process. Where waits block the host, their own deadline, which
// is an error with a name, comes first.
constexpr std::chrono::seconds kWatchdogAfterDeadline{60};

class NcclBackend final : public c10d::ProcessGroupNCCL {
 public:
  using ProcessGroupNCCL::ProcessGroupNCCL;

  bool is_busy() {
    const std::lock_guard lock(workMetaListMutex_);
    return std::ranges::any_of(workMetaList_, [](auto& work) { return !work.isCompleted(); });
  }
};

class NativeNccl final : public C10dBackend {
 public:
  NativeNccl(const c10::intrusive_ptr<NcclBackend>& nccl, c10::Device device, bool blocks_host)
      : C10dBackend(nccl),
        nccl_(*nccl),
        device_(device),
        unfinished_(blocks_host ? std::make_shared<std::atomic<int>>(0) : nullptr) {}

  // LibTorch's destructor alone would abort the communicators, and warn of it.
  ~NativeNccl() override {
    try {
      nccl_.shutdown();
    } catch (const std::exception& error) {
      log(LogLevel::kWarning, concat("backend nccl: ", error_text(error)));
    }
  }

  bool takes_cuda() const override { return true; }
  // Where LibTorch has no watchdog, it knows of nothing that is under way.
  bool is_busy() override { return (unfinished_ && *unfinished_ > 0) || nccl_.is_busy(); }

  WorkPtr barrier(const CallTerms& terms) override {
    c10d::BarrierOptions options;
    options.timeout = terms.timeout;
    options.device = device_;
    return wrap(nccl_.barrier(options), terms);
  }

  WorkPtr send(const Tensor& tensor, int target, int tag, const CallTerms& terms) override {
    refuse_tag("send", tag);
    return C10dBackend::send(tensor, target, tag, terms);
  }
  WorkPtr recv(const Tensor& tensor, int source, int tag, const CallTerms& terms) override {
    refuse_tag("recv", tag);
    return C10dBackend::recv(tensor, source, tag, terms);
  }

 protected:
  WorkPtr wrap(WorkPtr work, const CallTerms& terms) override {
    return c10::make_intrusive<NcclWork>(std::move(work), unfinished_, terms.timeout);
  }

 private:
  // NCCL would deliver in the order of the calls, whatever their tags.
  static void refuse_tag(const char* operation, int tag) {
    if (tag == 0) return;
    throw UsageError(concat(operation, ": tag=", tag,
                            ", but backend 'nccl' has no tags; use 0, or a group of backend gloo"));
  }

  NcclBackend& nccl_;
  const c10::Device device_;
  const std::shared_ptr<std::atomic<int>> unfinished_;  // null where waits do not block the host
};

}  // namespace

int cuda_device_count() {
  return static_cast<int>(c10::cuda::device_count());
}

c10::Device nccl_device(int local_rank) {
  const int devices = cuda_device_count();
  if (local_rank >= devices) {
    throw UsageError(concat("backend nccl: local rank ", local_rank,
                            " has no CUDA device, this machine shows ", devices,
                            "; start fewer processes per machine, or use backend gloo"));
  }
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank)};
}

std::shared_ptr<NativeBackend> make_nccl_backend(const BackendConfig& config) {
  const c10::Device device = nccl_device(config.local_rank);
  c10::cuda::set_device(device.index());
  // A rank that recovers must find out that a collective failed before its optimizer steps.
  const bool blocks_host =
      config.while_waiting || env::boolean(env::kNcclBlockingWait).value_or(false);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = config.timeout + (blocks_host ? kWatchdogAfterDeadline : 0s);
  options->group_name = config.group_name;
  return std::make_shared<NativeNccl>(
      c10::make_intrusive<NcclBackend>(config.store, config.rank, config.world_size, options),
      device, blocks_host);
}

}  // namespace lockstep::inline internal
