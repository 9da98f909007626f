#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep::inline internal {

/// A collective on copies of tensors, whose results the first that finds it complete writes to
/// where they belong. Threads: any. Errors: those of the collective.
class CopiedWork final : public c10d::Work {
 public:
  /// `write` writes to `outputs`, and is called once at most.
  CopiedWork(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> outputs,
             std::function<void(const std::vector<at::Tensor>& outputs)> write);

  bool isCompleted() override;
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  /// Complete when it returns.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void write_outputs();

  const c10::intrusive_ptr<c10d::Work> work_;
  const std::vector<at::Tensor> outputs_;
  const std::function<void(const std::vector<at::Tensor>&)> write_;
  std::once_flag written_;
};

/// A collective whose result is `flat`. `outputs`: its parts, in order.
c10::intrusive_ptr<c10d::Work> flat_work(c10::intrusive_ptr<c10d::Work> work, at::Tensor flat,
                                         std::vector<at::Tensor> outputs);

/// What `work` has come to: a future that is complete when this returns, with its tensors or with
/// its error. For works behind which there is no thread that could complete one later.
c10::intrusive_ptr<c10::ivalue::Future> finished_future(c10d::Work& work);

/// The elements of all tensors, one after the other. Errors: UsageError where there is none, and
/// for tensors of different dtypes.
at::Tensor flat_copy(const std::vector<at::Tensor>& tensors);

}  // namespace lockstep::inline internal
