#include "lockstep/comm/backends/flat_work.h"

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"

namespace lockstep {

FlatWork::FlatWork(c10::intrusive_ptr<c10d::Work> work, at::Tensor flat,
                   std::vector<at::Tensor> outputs)
    : work_(std::move(work)), flat_(std::move(flat)), outputs_(std::move(outputs)) {}

bool FlatWork::isCompleted() {
  if (!work_->isCompleted()) return false;
  if (work_->isSuccess()) copy_out();
  return true;
}

bool FlatWork::wait(std::chrono::milliseconds timeout) {
  const bool complete = work_->wait(timeout);
  copy_out();
  return complete;
}

c10::intrusive_ptr<c10::ivalue::Future> FlatWork::getFuture() {
  return finished_future(*this);
}

void FlatWork::copy_out() {
  std::call_once(copied_, [this] {
    const c10::NoGradGuard no_grad;
    std::int64_t offset = 0;
    for (const at::Tensor& output : outputs_) {
      output.copy_(flat_.narrow(0, offset, output.numel()).view(output.sizes()));
      offset += output.numel();
    }
  });
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
                              " in one call; make one call a dtype"));
    }
    flat.push_back(tensor.reshape({-1}));
  }
  return at::cat(flat);
}

}  // namespace lockstep
