#pragma once

#include <functional>
#include <memory>
#include <type_traits>

#include "lockstep/rpc/function_binding.h"
#include "lockstep/rpc/pending_call.h"

namespace lockstep::rpc {

/// The result of a call that may still be under way. Threads: any.
template <class Result>
class Future {
 public:
  explicit Future(std::shared_ptr<PendingCall> call) : call_(std::move(call)) {}

  /// Returns when the answer is here; again each time. Errors: as rpc::call.
  Result wait() const {
    if constexpr (std::is_void_v<Result>) {
      call_->wait();
    } else {
      return from_value<Result>(call_->wait());
    }
  }
  /// Whether wait() would return or throw at once: the answer is here, or it is known that none
  /// will come, since the worker is gone or the timeout has expired.
  bool done() const { return call_->done(); }
  /// Runs `action` once wait() will return or throw at once: on this thread if that is so already,
  /// else on one that takes answers, for all others too, or that waits for this one. It must not
  /// wait for anything, nor take a lock that a thread has while it waits for an answer.
  void when_done(std::function<void()> action) const { call_->when_done(std::move(action)); }

 private:
  std::shared_ptr<PendingCall> call_;
};

}  // namespace lockstep::rpc
