#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep::inline internal {

/// A collective on copies of tensors. The first call that finds it complete writes the results to
/// the original tensors.
/// Threads: any.
/// Errors: those of the collective.
class CopiedWork final : public c10d::Work {
 public:
  /// `write` writes to `outputs`; it is called at most once.
  CopiedWork(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> outputs,
             std::function<void(const std::vector<at::Tensor>& outputs)> write);

  bool isCompleted() override;
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  /// A future that is complete when this returns.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void write_outputs();

  const c10::intrusive_ptr<c10d::Work> work_;
  const std::vector<at::Tensor> outputs_;
  const std::function<void(const std::vector<at::Tensor>&)> write_;
  std::once_flag written_;
};

/// A collective whose result is `flat`; `outputs` are its parts, in order.
c10::intrusive_ptr<c10d::Work> flat_work(c10::intrusive_ptr<c10d::Work> work, at::Tensor flat,
                                         std::vector<at::Tensor> outputs);

/// A future with the tensors or the error of `work`, complete when this returns. For works without
/// a thread that could complete a future later.
c10::intrusive_ptr<c10::ivalue::Future> finished_future(c10d::Work& work);

/// The elements of all tensors, concatenated.
/// Errors: UsageError for an empty list, and for tensors of different dtypes.
at::Tensor flat_copy(const std::vector<at::Tensor>& tensors);

}  // namespace lockstep::inline internal
