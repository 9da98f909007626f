#include "lockstep/rpc/internal/pending_call.h"

#include <torch/csrc/distributed/autograd/utils.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/error_text.h"
#include "lockstep/rpc/future.h"
#include "lockstep/rpc/internal/autograd_record.h"
#include "lockstep/rpc/internal/transport_error.h"
#include "lockstep/rpc/internal/worker.h"

namespace lockstep::rpc::inline internal {

namespace torch_rpc = torch::distributed::rpc;
namespace torch_autograd = torch::distributed::autograd;

namespace {

// The agent ends a call at its timeout; this is for when it cannot.
constexpr std::chrono::seconds kGrace{2};

}  // namespace

PendingCall::PendingCall(std::weak_ptr<Worker> worker, int target, std::string what,
                         std::chrono::milliseconds timeout,
                         c10::intrusive_ptr<c10::ivalue::Future> answer,
                         std::vector<at::Tensor> arguments)
    : worker_(std::move(worker)),
      target_(target),
      what_(std::move(what)),
      timeout_(timeout),
      answer_(std::move(answer)),
      deadline_(Deadline::after(timeout + kGrace)),
      arguments_(std::move(arguments)) {
  answer_->addCallback([arrival = arrival_](c10::ivalue::Future&) {
    const MutexLock lock(arrival->mutex);
    arrival->has_arrived = true;
    arrival->arrived.notify_all();
  });
}

c10::IValue PendingCall::wait() {
  wait_for_arrival();
  const MutexLock lock(mutex_);
  // Once: what an answer names is given back as often as it is read.
  if (!value_ && !error_) {
    try {
      value_ = take_answer();
    } catch (...) {
      error_ = std::current_exception();
    }
    arguments_.clear();
  }
  if (error_) std::rethrow_exception(error_);
  return *value_;
}

void PendingCall::wait_for_arrival() const {
  if (const auto worker = worker_.lock()) worker->poll_for(*answer_, target_);
  MutexLock lock(arrival_->mutex);
  const bool in_time = arrival_->arrived.wait_until(
      lock.native(), deadline_.instant(),
      [this]() LOCKSTEP_REQUIRES(arrival_->mutex) { return arrival_->has_arrived; });
  if (in_time) return;
  throw TimeoutError(fields(), concat("no answer within ", timeout_.count(),
                                      " ms; all threads of this worker were busy"));
}

ErrorFields PendingCall::fields() const {
  return {.operation = what_, .timeout = timeout_, .ranks = {target_}};
}

void PendingCall::when_done(std::function<void()> action) {
  answer_->addCallback([action = std::move(action)](c10::ivalue::Future&) { action(); });
}

c10::IValue PendingCall::take_answer() {
  if (answer_->hasError()) {
    const std::string message = answer_->tryRetrieveErrorMessage();
    if (is_timeout(message)) {
      throw TimeoutError(fields(), concat("no answer within ", timeout_.count(),
                                          " ms; it is slow, stuck or stopped"));
    }
    const auto here = worker_.lock();
    if (!here || here->stopped()) throw UsageError(concat(what_, ": rpc has been shut down"));
    if (is_connection_error(message)) throw here->loss_of(target_, fields());
    throw CommError(fields(), without_mark(message.substr(0, message.find('\n'))));
  }
  const auto worker = worker_.lock();
  if (!worker) throw UsageError(concat(what_, ": rpc has been shut down"));
  const auto message = answer_->value().toCustomClass<torch_rpc::Message>();
  MessageData parcel{message->payload(), message->tensors()};
  CallReply answer;
  try {
    worker->check_size(parcel);
    answer = read_answer(parcel, worker->incoming(Worker::Way::kAnswer));
  } catch (const std::exception& error) {
    throw CommError(fields(), concat("the answer was refused: ", error_text(error)));
  }
  if (!answer.error_type.empty()) {
    throw RemoteError(what_, worker->find(target_).name, answer.error_type, answer.error);
  }
  if (answer.autograd) {
    torch_autograd::addRecvRpcBackward({answer.autograd->context, answer.autograd->message},
                                       parcel.tensors, static_cast<torch_rpc::worker_id_t>(target_),
                                       worker->gradients_back_to(target_));
    refuse_local_backward(parcel.tensors, arguments_);
  }
  return std::move(answer.value);
}

}  // namespace lockstep::rpc::inline internal

namespace lockstep::rpc {

c10::IValue wait_for(PendingCall& call) {
  return call.wait();
}

bool is_done(const PendingCall& call) {
  return call.done();
}

void when_done(PendingCall& call, std::function<void()> action) {
  call.when_done(std::move(action));
}

}  // namespace lockstep::rpc
