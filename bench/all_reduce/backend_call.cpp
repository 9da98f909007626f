#include <numeric>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "bench/all_reduce/subject_call.h"

namespace lockstep::bench {
namespace {

class BackendCall final : public SubjectCall {
 public:
  BackendCall(Subject subject, ProcessGroup group, at::Tensor whole)
      : subject_(std::move(subject)),
        group_(std::move(group)),
        backend_(group_.c10d_backend()),
        whole_(std::move(whole)) {}

  const Subject& subject() const override { return subject_; }

  void set_bytes(std::int64_t bytes) override {
    tensors_ = {whole_.narrow(0, 0, bytes / static_cast<std::int64_t>(sizeof(float)))};
  }

  void call() override { backend_->allreduce(tensors_)->wait(); }

  std::span<float> values() override {
    return {tensors_[0].mutable_data_ptr<float>(), static_cast<std::size_t>(tensors_[0].numel())};
  }

 private:
  Subject subject_;
  ProcessGroup group_;  // keeps the backend connected
  c10::intrusive_ptr<c10d::Backend> backend_;
  at::Tensor whole_;
  std::vector<at::Tensor> tensors_;
};

bool allocates(c10d::Backend& backend) {
  constexpr c10::DeviceIndex kCpu = -1;
  return backend.supportsTensorAlloc(kCpu);
}

}  // namespace

std::vector<std::unique_ptr<SubjectCall>> make_backend_calls(const Control& control,
                                                             const BenchOptions& options,
                                                             std::int64_t bytes_max) {
  const auto elements = bytes_max / static_cast<std::int64_t>(sizeof(float));
  // One for all backends: what they do to ordinary memory is compared over the same pages.
  const at::Tensor ordinary = at::empty({elements}, at::kFloat);
  std::vector<int> everyone(static_cast<std::size_t>(control.ranks()));
  std::iota(everyone.begin(), everyone.end(), 0);
  std::vector<std::unique_ptr<SubjectCall>> calls;
  for (const std::string& name : options.backends) {
    const ProcessGroup group = control.group().new_group(everyone, {.backend = name});
    const bool has_shared = allocates(*group.c10d_backend());
    bool has_private = false;
    for (const BenchMemory memory : options.memory) {
      if (memory == BenchMemory::kShared && has_shared) {
        calls.push_back(std::make_unique<BackendCall>(
            Subject{.name = name, .memory = "shared"}, group,
            group.c10d_backend()->allocateTensor(elements, at::kFloat)));
      } else if (!has_private) {
        has_private = true;
        calls.push_back(std::make_unique<BackendCall>(Subject{.name = name, .memory = "private"},
                                                      group, ordinary));
      }
    }
  }
  return calls;
}

}  // namespace lockstep::bench
