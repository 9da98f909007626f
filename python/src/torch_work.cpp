#include "python/src/torch_work.h"

#include <thread>

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/deadline.h"
#include "python/src/progress_thread.h"
#include "python/src/python_errors.h"

namespace lockstep::python {

void Part::complete() {
  work_.wait();
  std::call_once(written_, [this] {
    if (write_results_) write_results_();
  });
}

TorchWork::TorchWork(Call call)
    : Work(call.rank, call.op_type, call.title, call.inputs), call_(std::move(call)) {
  call_.inputs.clear();
}

bool TorchWork::parts_are_completed() const {
  for (const auto& part : parts_) {
    if (!part->is_completed()) return false;
  }
  return true;
}

bool TorchWork::has_ended() const {
  const std::lock_guard lock(state_mutex_);
  return ended_;
}

void TorchWork::end() noexcept {
  if (has_ended()) return;
  const WithoutGil without_gil;
  std::exception_ptr error;
  for (const auto& part : parts_) {
    try {
      part->complete();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  FuturePtr future;
  FuturePtr result_future;
  {
    const std::lock_guard lock(state_mutex_);
    if (ended_) return;
    ended_ = true;
    error_ = error;
    future = future_;
    result_future = result_future_;
  }
  if (error && call_.on_error) call_.on_error(error);
  call_.on_error = nullptr;
  finish(error);
  mark(future, false);
  mark(result_future, true);
}

bool TorchWork::isCompleted() {
  if (has_ended()) return true;
  if (!parts_are_completed()) return false;
  end();
  return true;
}

bool TorchWork::isSuccess() const {
  auto& self = const_cast<TorchWork&>(*this);  // c10d asks for completion here, too
  return self.isCompleted() && !exception();
}

std::exception_ptr TorchWork::exception() const {
  const std::lock_guard lock(state_mutex_);
  return error_;
}

int TorchWork::sourceRank() const {
  return message_ ? message_->sourceRank() : Work::sourceRank();
}

void TorchWork::throw_if_failed() const {
  const auto error = exception();
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (...) {
    rethrow_for_python();
  }
}

bool TorchWork::wait(std::chrono::milliseconds timeout) {
  if (timeout > kNoTimeout) {
    const auto deadline = Deadline::after(timeout);
    auto pause = std::chrono::microseconds(20);
    while (!isCompleted()) {
      if (deadline.passed()) {
        throw c10::DistBackendError(
            concat(call_.title, " number ", call_.sequence, " on rank ", call_.rank,
                   ": not complete within the ", timeout.count(),
                   " ms of this wait; it goes on, wait again or look at the other ranks"),
            nullptr);
      }
      try {
        run_signal_handlers();
      } catch (...) {
        rethrow_for_python();
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(1000));
    }
  }
  end();
  if (c10d::allow_inflight_collective_as_graph_input()) {
    c10d::unregister_work(
        c10::intrusive_ptr<c10d::Work>::unsafe_reclaim_from_nonowning(this));
  }
  throw_if_failed();
  return true;
}

TorchWork::FuturePtr TorchWork::future(FuturePtr& slot, const c10::TypePtr& type) {
  bool is_new = false;
  FuturePtr made;
  {
    const std::lock_guard lock(state_mutex_);
    if (!slot) {
      slot = c10::make_intrusive<c10::ivalue::Future>(type);
      is_new = true;
    }
    made = slot;
    if (!ended_) is_new = false;
  }
  if (is_new) {  // It had ended before: nobody else marks it.
    mark(made, &slot == &result_future_);
    return made;
  }
  const bool in_backward = torch::autograd::get_current_graph_task_id() >= 0;
  if (in_backward || ProgressThread::is_current()) {
    end();
  } else if (!isCompleted()) {
    ProgressThread::instance().add(
        c10::intrusive_ptr<TorchWork>::unsafe_reclaim_from_nonowning(this));
  }
  return made;
}

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::getFuture() {
  return future(future_, c10::ListType::create(c10::TensorType::get()));
}

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::getFutureResult() {
  return future(result_future_, c10::IntType::get());
}

void TorchWork::mark(const FuturePtr& future, bool is_result) const {
  if (!future) return;
  const auto error = exception();
  if (is_result) {
    future->markCompleted(
        c10::IValue(static_cast<std::int64_t>(static_cast<std::uint8_t>(work_result_of(error)))));
  } else if (!error) {
    future->markCompleted(c10::IValue(call_.outputs));
  } else {
    try {
      throw_if_failed();
    } catch (...) {
      future->setError(std::current_exception());
    }
  }
}

}  // namespace lockstep::python
