#include "lockstep/comm/backends/flat_work.h"

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

CopiedWork::CopiedWork(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> outputs,
                       std::function<void(const std::vector<at::Tensor>&)> write)
    : work_(std::move(work)), outputs_(std::move(outputs)), write_(std::move(write)) {}

bool CopiedWork::isCompleted() {
  if (!work_->isCompleted()) return false;
  if (work_->isSuccess()) {
    work_->synchronize();  // The stream that writes waits for the results on a CUDA device.
    write_outputs();
  }
  return true;
}

bool CopiedWork::wait(std::chrono::milliseconds timeout) {
  const bool complete = work_->wait(timeout);
  write_outputs();
  return complete;
}

c10::intrusive_ptr<c10::ivalue::Future> CopiedWork::getFuture() {
  return finished_future(*this);
}

void CopiedWork::write_outputs() {
  std::call_once(written_, [this] { write_(outputs_); });
}

c10::intrusive_ptr<c10d::Work> flat_work(c10::intrusive_ptr<c10d::Work> work, at::Tensor flat,
                                         std::vector<at::Tensor> outputs) {
  const auto write = [flat = std::move(flat)](const std::vector<at::Tensor>& parts) {
    const c10::NoGradGuard no_grad;
    std::int64_t offset = 0;
    for (const at::Tensor& part : parts) {
      part.copy_(flat.narrow(0, offset, part.numel()).view(part.sizes()));
      offset += part.numel();
    }
  };
  return c10::make_intrusive<CopiedWork>(std::move(work), std::move(outputs), write);
}

c10::intrusive_ptr<c10::ivalue::Future> finished_future(c10d::Work& work) {
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  try {
    work.wait(kNoTimeout);
    future->markCompleted(c10::IValue(work.result()));
  } catch (...) {
    future->setError(std::current_exception());
  }
  return future;
}

at::Tensor flat_copy(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) throw UsageError("no tensors given; at least one is needed");
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.scalar_type() != tensors[0].scalar_type()) {
      throw UsageError(concat("tensors of ", c10::toString(tensors[0].scalar_type()), " and of ",
                              c10::toString(tensor.scalar_type()),
                              " in one call; make one call per dtype"));
    }
    flat.push_back(tensor.reshape({-1}));
  }
  return at::cat(flat);
}

}  // namespace lockstep::inline internal
