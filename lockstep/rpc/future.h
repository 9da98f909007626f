#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>

#include <ATen/core/ivalue.h>

#include "lockstep/base/error.h"
#include "lockstep/rpc/function_binding.h"

namespace lockstep::rpc {

/// A function that was called on another worker threw. what() names the call, the worker and what
/// it said there.
class RemoteError : public Error {
 public:
  RemoteError(const std::string& call, std::string worker, std::string type_name,
              const std::string& message)
      : Error(call + ": " + type_name + ": " + message),
        worker_(std::move(worker)),
        type_name_(std::move(type_name)) {}

  const char* name() const noexcept override { return "RemoteError"; }
  /// The worker on which it was thrown.
  const std::string& worker() const { return worker_; }
  /// Of the error there: "UsageError", "std::out_of_range", ….
  const std::string& type_name() const { return type_name_; }

 private:
  std::string worker_;
  std::string type_name_;
};

inline namespace internal {
class PendingCall;
}

/// What Future is made of. Errors: as rpc::call.
c10::IValue wait_for(PendingCall& call);
bool is_done(const PendingCall& call);
void when_done(PendingCall& call, std::function<void()> action);

/// The result of a call that may still be under way. Threads: any.
template <class Result>
class Future {
 public:
  explicit Future(std::shared_ptr<PendingCall> call) : call_(std::move(call)) {}

  /// Returns when the answer is here; again each time. Errors: as rpc::call.
  Result wait() const {
    if constexpr (std::is_void_v<Result>) {
      wait_for(*call_);
    } else {
      return from_value<Result>(wait_for(*call_));
    }
  }
  /// Whether wait() would return or throw at once: the answer is here, or it is known that none
  /// will come, since the worker is gone or the timeout has expired.
  bool done() const { return is_done(*call_); }
  /// Runs `action` once wait() will return or throw at once: on this thread if that is so already,
  /// else on one that takes answers, for all others too, or that waits for this one. It must not
  /// wait for anything, nor take a lock that a thread has while it waits for an answer.
  void when_done(std::function<void()> action) const { rpc::when_done(*call_, std::move(action)); }

 private:
  std::shared_ptr<PendingCall> call_;
};

}  // namespace lockstep::rpc
