#pragma once

#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/backends/flat_work.h"

namespace lockstep::inline internal {

/// c10d's handle of a task that a driver advances by poll() and wait().
/// Lifetime: keeps the backend alive, and the task's tensors until it has ended.
template <class Driver, class Task>
class TaskWork final : public c10d::Work {
 public:
  TaskWork(c10d::Backend& backend, Driver& driver, std::shared_ptr<Task> task)
      : backend_(c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(&backend)),
        driver_(driver),
        task_(std::move(task)) {}

  bool isCompleted() override { return driver_.poll(*task_); }
  bool isSuccess() const override { return driver_.poll(*task_) && !task_->error; }
  std::exception_ptr exception() const override {
    return driver_.poll(*task_) ? task_->error : nullptr;
  }
  /// Waits until the task's own deadline if `timeout` is c10d's kNoTimeout.
  bool wait(std::chrono::milliseconds timeout) override {
    // Behind the task's deadline: then the driver itself says what is the matter.
    const Deadline until = timeout == kNoTimeout
                               ? Deadline::after(task_->timeout + std::chrono::hours(1))
                               : Deadline::after(timeout);
    if (!driver_.wait(*task_, until)) driver_.throw_incomplete(*task_, timeout);
    return true;
  }
  std::vector<at::Tensor> result() override { return task_->tensors; }
  /// The sender of a message that is complete.
  int sourceRank() const override {
    if constexpr (requires { task_->message.peer; }) {
      return task_->message.peer;
    } else {
      return c10d::Work::sourceRank();
    }
  }
  /// A future that is complete when this returns, because there is no thread that could complete it
  /// later.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return finished_future(*this); }

 private:
  const c10::intrusive_ptr<c10d::Backend> backend_;
  Driver& driver_;
  const std::shared_ptr<Task> task_;
};

}  // namespace lockstep::inline internal
