#include "lockstep/comm/backends/hierarchical/hierarchical_work.h"

#include "lockstep/comm/internal/comm_error.h"

namespace lockstep::hierarchical {

PartWork::PartWork(c10::intrusive_ptr<c10d::Backend> backend, Pipeline& pipeline,
                   c10::intrusive_ptr<c10d::Work> work)
    : backend_(std::move(backend)), pipeline_(pipeline), work_(std::move(work)) {}

bool PartWork::isCompleted() {
  return pipeline_.drive_until([&] { return work_->isCompleted(); },
                               Deadline(Deadline::Clock::now()));
}

bool PartWork::isSuccess() const {
  return work_->isSuccess();
}

std::exception_ptr PartWork::exception() const {
  return work_->exception();
}

bool PartWork::wait(std::chrono::milliseconds timeout) {
  const Deadline until = Deadline::after(timeout == kNoTimeout ? std::chrono::hours(1) : timeout);
  pipeline_.drive_until([&] { return work_->isCompleted(); }, until);
  // Nothing is left to drive, or it has ended, or the time is over.
  try {
    if (timeout == kNoTimeout) return work_->wait(timeout);
    return work_->wait(std::max(until.remaining(), std::chrono::milliseconds(1)));
  } catch (const WaitExpired&) {
    throw;
  } catch (const std::exception& error) {
    const CommFailure failure = failure_of(error.what());
    if (failure == CommFailure::kTimeout) pipeline_.say_that_it_waits();
    if (failure != CommFailure::kPeerLost) throw;
    pipeline_.give_up(std::current_exception());
  }
}

bool MessageWork::wait(std::chrono::milliseconds timeout) {
  return pipeline_.idle() ? work_->wait(timeout) : PartWork::wait(timeout);
}

std::vector<at::Tensor> PartWork::result() {
  return work_->result();
}

c10::intrusive_ptr<c10::ivalue::Future> PartWork::getFuture() {
  return work_->getFuture();
}

}  // namespace lockstep::hierarchical
