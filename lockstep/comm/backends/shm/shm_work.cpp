#include "lockstep/comm/backends/shm/shm_work.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/backends/flat_work.h"

namespace lockstep::shm {

ShmWork::ShmWork(c10::intrusive_ptr<c10d::Backend> backend, Engine& engine,
                 std::shared_ptr<TensorTask> task)
    : backend_(std::move(backend)), engine_(engine), task_(std::move(task)) {}

bool ShmWork::isCompleted() {
  return engine_.poll(*task_);
}

bool ShmWork::isSuccess() const {
  return engine_.poll(*task_) && !task_->error;
}

std::exception_ptr ShmWork::exception() const {
  return engine_.poll(*task_) ? task_->error : nullptr;
}

bool ShmWork::wait(std::chrono::milliseconds timeout) {
  // Behind the task's deadline: then the engine itself says what is the matter.
  const Deadline until = timeout == kNoTimeout
                             ? Deadline(task_->deadline.instant() + std::chrono::hours(1))
                             : Deadline::after(timeout);
  if (!engine_.wait(*task_, until)) {
    throw TimeoutError(engine_.fields_of(*task_),
                       concat("not complete after ", timeout.count(), " ms"));
  }
  return true;
}

std::vector<at::Tensor> ShmWork::result() {
  return task_->tensors;
}

c10::intrusive_ptr<c10::ivalue::Future> ShmWork::getFuture() {
  return finished_future(*this);
}

}  // namespace lockstep::shm
