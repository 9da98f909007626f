#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/backends/flat_work.h"

namespace lockstep::inline internal {

/// c10d's handle of a task that shm::Engine or hierarchical::Pipeline drives, without a thread.
/// Threads: any. Lifetime: keeps the backend alive, and the tensors until the task has ended.
/// Errors: from wait(): those of the task, and Driver::throw_not_complete() before its deadline.
template <class Driver, class Task>
class DrivenWork final : public c10d::Work {
 public:
  DrivenWork(c10::intrusive_ptr<c10d::Backend> backend, Driver& driver, std::shared_ptr<Task> task)
      : backend_(std::move(backend)), driver_(driver), task_(std::move(task)) {}

  bool isCompleted() override { return driver_.poll(*task_); }
  bool isSuccess() const override { return driver_.poll(*task_) && !task_->error; }
  std::exception_ptr exception() const override {
    return driver_.poll(*task_) ? task_->error : nullptr;
  }
  /// Until the task's own deadline where `timeout` is c10d's kNoTimeout.
  bool wait(std::chrono::milliseconds timeout) override {
    // Behind the task's deadline: then the driver itself says what is the matter.
    const Deadline until = timeout == kNoTimeout
                               ? Deadline(task_->deadline.instant() + std::chrono::hours(1))
                               : Deadline::after(timeout);
    if (!driver_.wait(*task_, until)) driver_.throw_not_complete(*task_, timeout);
    return true;
  }
  std::vector<at::Tensor> result() override { return task_->tensors; }
  /// Complete when it returns: there is no thread that could complete it later.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return finished_future(*this); }

 private:
  const c10::intrusive_ptr<c10d::Backend> backend_;
  Driver& driver_;
  const std::shared_ptr<Task> task_;
};

}  // namespace lockstep::inline internal
