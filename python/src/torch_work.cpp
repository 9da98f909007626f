#include "python/src/torch_work.h"

#include <algorithm>
#include <array>
#include <utility>

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/deadline.h"
#include "python/src/progress_thread.h"
#include "python/src/python_errors.h"

namespace lockstep::python {

namespace {

constexpr std::chrono::milliseconds kBetweenSignals{20};

}  // namespace

std::exception_ptr Part::wait_and_write() const {
  try {
    work_.wait();
    if (write_results_) write_results_();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

std::exception_ptr Part::complete() {
  internal::MutexLock lock(mutex_);
  while (state_ == State::kAwaited) {
    changed_.wait_for(lock.native(), kBetweenSignals,
                      [this]() LOCKSTEP_REQUIRES(mutex_) { return state_ == State::kEnded; });
    if (state_ == State::kEnded) break;
    lock.unlock();
    if (runs_signal_handler()) {
      throw UsageError(
          "wait: called by a signal handler for a call that a thread waits for; set a flag in the "
          "handler, and wait elsewhere");
    }
    run_signal_handlers();
    lock.lock();
  }
  if (state_ == State::kStarted) {
    state_ = State::kAwaited;
    lock.unlock();
    auto error = wait_and_write();
    lock.lock();
    error_ = std::move(error);
    state_ = State::kEnded;
    changed_.notify_all();
  }
  return error_;
}

// A thread that waits for it may run a signal handler: who only asks does not wait for that.
bool Part::is_completed() const {
  {
    const internal::MutexLock lock(mutex_);
    if (state_ != State::kStarted) return state_ == State::kEnded;
  }
  return work_.is_completed();
}

TorchWork::TorchWork(Call call)
    : Work(call.rank, call.op_type, call.title, std::move(call.inputs)), call_(std::move(call)) {}

bool TorchWork::parts_are_completed() const {
  for (const auto& part : parts_) {
    if (!part->is_completed()) return false;
  }
  return true;
}

// For the thread that runs the callbacks of its futures a work has ended: they may ask it.
bool TorchWork::has_ended() const {
  const internal::MutexLock lock(state_mutex_);
  return state_ == State::kEnded ||
         (state_ == State::kMarking && marked_by_ == std::this_thread::get_id());
}

bool TorchWork::writes_results() const {
  return std::ranges::any_of(parts_, [](const auto& part) { return part->writes_results(); });
}

bool TorchWork::has_succeeded() const {
  return has_ended() && !exception();
}

void TorchWork::end() {
  if (has_ended()) return;
  const WithoutGil without_gil;
  std::exception_ptr error;
  for (const auto& part : parts_) {
    std::exception_ptr of_part;
    try {
      of_part = part->complete();
    } catch (...) {
      rethrow_for_python();  // The wait of another thread goes on.
    }
    if (!error) error = of_part;
    // The program waits for the handler's exception, not for the other parts.
    if (of_part && is_of_signal_handler(of_part)) break;
  }
  FuturePtr future;
  FuturePtr result_future;
  {
    const internal::MutexLock lock(state_mutex_);
    if (state_ != State::kStarted) return;
    state_ = State::kMarking;
    marked_by_ = std::this_thread::get_id();
    error_ = error;
    future = future_;
    result_future = result_future_;
  }
  if (error) *call_.error_of_backend = error_type_of(error);
  mark(future, false);
  mark(result_future, true);
  {
    const internal::MutexLock lock(state_mutex_);
    state_ = State::kEnded;
  }
  ended_.notify_all();
  finish(error);
}

void TorchWork::end_and_wait_for_futures() {
  end();
  while (!has_ended()) {
    const WithoutGil without_gil;
    {
      internal::MutexLock lock(state_mutex_);
      ended_.wait_for(lock.native(), kBetweenSignals,
                      [this]() LOCKSTEP_REQUIRES(state_mutex_) { return state_ == State::kEnded; });
      if (state_ == State::kEnded) return;
    }
    try {
      run_signal_handlers();
    } catch (...) {
      rethrow_for_python();
    }
  }
}

void TorchWork::fail_futures() {
  std::array<FuturePtr, 2> futures;
  {
    const internal::MutexLock lock(state_mutex_);
    if (state_ != State::kStarted) return;
    futures = {std::exchange(future_, {}), std::exchange(result_future_, {})};
  }
  const auto error = std::make_exception_ptr(
      c10::DistBackendError(concat(call_.title, " number ", call_.sequence, " on rank ", call_.rank,
                                   ": not complete when the program ended; wait for it before"),
                            nullptr));
  for (const FuturePtr& future : futures) {
    if (future) future->setError(error);
  }
}

void TorchWork::check_process() const {
  call_.process.check(call_.title, call_.rank);
}

bool TorchWork::isCompleted() {
  if (has_ended()) return true;
  check_process();
  if (!parts_are_completed()) return false;
  end();
  return has_ended();
}

bool TorchWork::isSuccess() const {
  auto& self = const_cast<TorchWork&>(*this);  // c10d asks for completion here, too
  return self.isCompleted() && !exception();
}

std::exception_ptr TorchWork::exception() const {
  const internal::MutexLock lock(state_mutex_);
  return error_;
}

int TorchWork::sourceRank() const {
  if (message_) return message_->sourceRank();
  return call_.source ? *call_.source : Work::sourceRank();
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
  if (!has_ended()) check_process();
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
  end_and_wait_for_futures();
  if (c10d::allow_inflight_collective_as_graph_input()) {
    c10d::unregister_work(c10::intrusive_ptr<c10d::Work>::unsafe_reclaim_from_nonowning(this));
  }
  throw_if_failed();
  return true;
}

TorchWork::FuturePtr TorchWork::future(FuturePtr TorchWork::*slot, const c10::TypePtr& type) {
  if (!has_ended()) check_process();
  bool is_new = false;
  FuturePtr made;
  {
    const internal::MutexLock lock(state_mutex_);
    if (!(this->*slot)) {
      this->*slot = c10::make_intrusive<c10::ivalue::Future>(type);
      is_new = true;
    }
    made = this->*slot;
    if (state_ == State::kStarted) is_new = false;
  }
  if (is_new) {  // The results were there before: nobody else marks it.
    mark(made, slot == &TorchWork::result_future_);
    return made;
  }
  const bool in_backward = torch::autograd::get_current_graph_task_id() >= 0;
  if (in_backward || ProgressThread::is_current()) {
    end_and_wait_for_futures();
  } else if (!isCompleted() &&
             !ProgressThread::instance().add(
                 c10::intrusive_ptr<TorchWork>::unsafe_reclaim_from_nonowning(this))) {
    end_and_wait_for_futures();
  }
  return made;
}

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::getFuture() {
  return future(&TorchWork::future_, c10::ListType::create(c10::TensorType::get()));
}

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::getFutureResult() {
  return future(&TorchWork::result_future_, c10::IntType::get());
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
