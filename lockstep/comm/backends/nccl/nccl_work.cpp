#include "lockstep/comm/backends/nccl/nccl_work.h"

#include <thread>
#include <utility>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/internal/comm_error.h"

namespace lockstep::inline internal {
namespace {

// CUDA has no wait with a deadline. Short against a step, long against the query of an event.
constexpr std::chrono::microseconds kBetweenQueries{20};

}  // namespace

NcclWork::NcclWork(c10::intrusive_ptr<c10d::Work> work,
                   std::shared_ptr<std::atomic<int>> unfinished, std::chrono::milliseconds timeout)
    : work_(std::move(work)),
      unfinished_(std::move(unfinished)),
      timeout_(timeout),
      is_counted_(unfinished_ != nullptr) {
  if (unfinished_) unfinished_->fetch_add(1);
}

// LibTorch's own throws that it is deprecated.
bool NcclWork::isSuccess() const {
  return work_->isCompleted() && !work_->exception();
}

bool NcclWork::wait(std::chrono::milliseconds timeout) {
  if (!unfinished_) return work_->wait(kNoTimeout);
  const auto limit = timeout == kNoTimeout ? timeout_ : timeout;
  const Deadline until = Deadline::after(limit);
  while (!work_->isCompleted()) {
    if (until.passed()) throw WaitExpired(concat("timed out after ", limit.count(), " ms"));
    std::this_thread::sleep_for(kBetweenQueries);
  }
  const bool is_complete = work_->wait(kNoTimeout);
  if (is_counted_.exchange(false)) unfinished_->fetch_sub(1);
  return is_complete;
}

}  // namespace lockstep::inline internal
