#include "lockstep/comm/backends/gloo/message_work.h"

#include <algorithm>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "lockstep/base/concat.h"
#include "lockstep/os/without_signals.h"

namespace lockstep::gloo_backend {

using std::chrono::milliseconds;

MessageWork::MessageWork(c10::intrusive_ptr<c10d::Backend> backend,
                         c10::intrusive_ptr<c10d::Work> work,
                         std::shared_ptr<std::atomic<int>> threads, milliseconds timeout)
    : backend_(std::move(backend)),
      work_(std::move(work)),
      threads_(std::move(threads)),
      deadline_(Deadline::after(timeout)) {}

std::exception_ptr MessageWork::error_of_wait(c10d::Work& work, milliseconds timeout) {
  try {
    work.wait(timeout);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

void MessageWork::publish(Outcome& outcome, std::exception_ptr error) {
  {
    const std::lock_guard lock(outcome.mutex);
    outcome.ended = true;
    outcome.error = std::move(error);
  }
  outcome.changed.notify_all();
}

// Where no thread can be made nobody waits for the message yet. The thread has let go of the
// backend, and does not count any more, by the time that the outcome is known: whoever then ends
// the group ends the backend.
void MessageWork::start_thread() {
  threads_->fetch_add(1);
  try {
    const WithoutSignals without_signals;
    std::thread([outcome = outcome_, work = work_, backend = backend_, threads = threads_,
                 timeout = std::max(deadline_.remaining(), milliseconds(1))]() mutable {
      std::exception_ptr error = error_of_wait(*work, timeout);
      work.reset();
      backend.reset();
      threads->fetch_sub(1);
      publish(*outcome, std::move(error));
    }).detach();
    outcome_->is_awaited = true;
  } catch (const std::system_error&) {
    threads_->fetch_sub(1);
  }
}

bool MessageWork::isCompleted() {
  const std::lock_guard lock(outcome_->mutex);
  if (!outcome_->is_awaited) start_thread();
  return outcome_->ended;
}

bool MessageWork::isSuccess() const {
  const std::lock_guard lock(outcome_->mutex);
  return outcome_->ended && !outcome_->error;
}

std::exception_ptr MessageWork::exception() const {
  const std::lock_guard lock(outcome_->mutex);
  return outcome_->error;
}

int MessageWork::sourceRank() const {
  return work_->sourceRank();
}

bool MessageWork::wait(milliseconds timeout) {
  std::unique_lock lock(outcome_->mutex);
  const milliseconds limit =
      timeout == kNoTimeout ? std::max(deadline_.remaining(), milliseconds(1)) : timeout;
  // Gloo's own wait would end the group after the limit.
  if (!outcome_->is_awaited && limit < deadline_.remaining()) start_thread();
  if (!outcome_->is_awaited) {
    outcome_->is_awaited = true;
    const milliseconds until_deadline = std::max(limit, deadline_.remaining());
    lock.unlock();
    publish(*outcome_, error_of_wait(*work_, until_deadline));
    lock.lock();
  }
  if (!outcome_->changed.wait_for(lock, limit, [&] { return outcome_->ended; })) {
    throw std::runtime_error(concat("timed out after ", limit.count(), " ms of waiting"));
  }
  if (outcome_->error) std::rethrow_exception(outcome_->error);
  return true;
}

void MessageWork::abort() {
  work_->abort();
}

void MessageWork::set_timeout(milliseconds timeout) {
  const std::lock_guard lock(outcome_->mutex);
  deadline_ = Deadline::after(timeout);
}

}  // namespace lockstep::gloo_backend
