#pragma once

#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep {

/// A collective on a flat copy of several tensors, whose result is copied to where it belongs by
/// the first that finds it complete. Threads: any. Errors: those of the collective.
class FlatWork final : public c10d::Work {
 public:
  /// `outputs`: parts of `flat`, in order.
  FlatWork(c10::intrusive_ptr<c10d::Work> work, at::Tensor flat, std::vector<at::Tensor> outputs);

  bool isCompleted() override;
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  /// Complete when it returns.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void copy_out();

  const c10::intrusive_ptr<c10d::Work> work_;
  const at::Tensor flat_;
  const std::vector<at::Tensor> outputs_;
  std::once_flag copied_;
};

/// What `work` has come to: a future that is complete when this returns, with its tensors or with
/// its error. For works behind which there is no thread that could complete one later.
c10::intrusive_ptr<c10::ivalue::Future> finished_future(c10d::Work& work);

/// The elements of all tensors, one after the other. Errors: UsageError where there is none, and
/// for tensors of different dtypes.
at::Tensor flat_copy(const std::vector<at::Tensor>& tensors);

}  // namespace lockstep
