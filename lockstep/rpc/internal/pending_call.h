#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/mutex.h"

namespace lockstep::rpc::inline internal {

class Worker;

/// A call, until its reply is taken.
/// Threads: any.
class PendingCall {
 public:
  /// `what`: for error messages, "rpc call of 'f' on worker 'w1' (rank 1)".
  /// `arguments`: tensors to which gradients of the reply flow.
  PendingCall(std::weak_ptr<Worker> worker, int target, std::string what,
              std::chrono::milliseconds timeout, c10::intrusive_ptr<c10::ivalue::Future> answer,
              std::vector<at::Tensor> arguments);

  /// Waits for the result; may be called again.
  /// Errors: RemoteError, PeerLost, TimeoutError; CommError for an invalid reply.
  c10::IValue wait();
  bool done() const { return answer_->completed(); }
  /// Runs `action`, on any thread, when done() becomes true.
  void when_done(std::function<void()> action);

 private:
  struct Arrival {
    Mutex mutex;
    std::condition_variable arrived;
    bool has_arrived LOCKSTEP_GUARDED_BY(mutex) = false;
  };

  ErrorFields fields() const;
  void wait_for_arrival() const;
  c10::IValue take_answer() LOCKSTEP_REQUIRES(mutex_);

  const std::weak_ptr<Worker> worker_;
  const int target_;
  const std::string what_;
  const std::chrono::milliseconds timeout_;
  const c10::intrusive_ptr<c10::ivalue::Future> answer_;
  const Deadline deadline_;
  const std::shared_ptr<Arrival> arrival_ = std::make_shared<Arrival>();
  Mutex mutex_;
  std::optional<c10::IValue> value_ LOCKSTEP_GUARDED_BY(mutex_);
  std::exception_ptr error_ LOCKSTEP_GUARDED_BY(mutex_);
  /// Until the reply is taken.
  std::vector<at::Tensor> arguments_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::rpc::inline internal
