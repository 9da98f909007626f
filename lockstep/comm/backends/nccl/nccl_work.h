#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep::inline internal {

/// A collective of NCCL. LibTorch's own work treats an expired wait as the end of the collective
/// and aborts the communicator; this one continues and can be waited for again.
/// Threads: any.
/// Lifetime: holds LibTorch's work.
/// Errors: wait() throws the collective's error, and WaitExpired if it blocks the host and the
/// timeout expires.
class NcclWork final : public c10d::Work {
 public:
  /// `unfinished`: counter of incomplete collectives; if given, wait() blocks the host until the
  /// collective is complete. Null: wait() makes the current stream wait, and only a barrier blocks
  /// the host. `timeout`: of a wait that has none and blocks the host.
  NcclWork(c10::intrusive_ptr<c10d::Work> work, std::shared_ptr<std::atomic<int>> unfinished,
           std::chrono::milliseconds timeout);

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override;
  std::exception_ptr exception() const override { return work_->exception(); }
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { work_->synchronize(); }
  void abort() override { work_->abort(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_->getFuture(); }

 private:
  const c10::intrusive_ptr<c10d::Work> work_;
  const std::shared_ptr<std::atomic<int>> unfinished_;
  const std::chrono::milliseconds timeout_;
  std::atomic<bool> is_counted_;
};

}  // namespace lockstep::inline internal
