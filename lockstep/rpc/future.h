#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>

#include <ATen/core/ivalue.h>

#include "lockstep/base/error.h"
#include "lockstep/rpc/function_binding.h"

namespace lockstep::rpc {

/// A function that was called on another worker threw. what() names the call, the worker and the
/// message there.
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
  /// Type of the error there: "UsageError", "std::out_of_range", ….
  const std::string& type_name() const { return type_name_; }

 private:
  std::string worker_;
  std::string type_name_;
};

inline namespace internal {
class PendingCall;
}

/// Waits for the result of a call; used by Future.
/// Errors: as rpc::call.
c10::IValue wait_for(PendingCall& call);
/// Whether wait_for() would return or throw at once.
bool is_done(const PendingCall& call);
/// As Future::when_done.
void when_done(PendingCall& call, std::function<void()> action);

/// The result of a call that may be in flight.
/// Threads: any.
template <class Result>
class Future {
 public:
  explicit Future(std::shared_ptr<PendingCall> call) : call_(std::move(call)) {}

  /// Waits for the reply and returns it; may be called again.
  /// Errors: as rpc::call.
  Result wait() const {
    if constexpr (std::is_void_v<Result>) {
      wait_for(*call_);
    } else {
      return from_value<Result>(wait_for(*call_));
    }
  }
  /// Whether wait() would return or throw at once: the reply has arrived, the worker is lost, or
  /// the timeout has expired.
  bool done() const { return is_done(*call_); }
  /// Runs `action` when done() becomes true: at once on this thread if it is, else on a thread that
  /// receives replies, or that waits for this future. `action` must not wait for anything, nor take
  /// a lock that a thread holds while it waits for a reply.
  void when_done(std::function<void()> action) const { rpc::when_done(*call_, std::move(action)); }

 private:
  std::shared_ptr<PendingCall> call_;
};

}  // namespace lockstep::rpc
