#pragma once

#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/comm/backends/shm/engine.h"

namespace lockstep::shm {

/// A task and the tensors it works on.
struct TensorTask final : Task {
  using Task::Task;
  std::vector<at::Tensor> tensors = {};
};

/// c10d's handle of a task. Keeps the backend alive, and the tensors until the task has ended.
class ShmWork final : public c10d::Work {
 public:
  ShmWork(c10::intrusive_ptr<c10d::Backend> backend, Engine& engine,
          std::shared_ptr<TensorTask> task);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Until the task's own deadline where `timeout` is c10d's kNoTimeout.
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override;
  /// Complete when it returns: there is no thread that could complete it later.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const c10::intrusive_ptr<c10d::Backend> backend_;
  Engine& engine_;
  const std::shared_ptr<TensorTask> task_;
};

}  // namespace lockstep::shm
