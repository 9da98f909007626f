// How a worker serves the messages of others.
#include <algorithm>
#include <typeinfo>

#include <c10/core/StreamGuard.h>
#include <c10/util/Type.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/rpc_messages/cleanup_autograd_context_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>
#include <torch/csrc/distributed/autograd/utils.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/error_text.h"
#include "lockstep/rpc/internal/agent.h"
#include "lockstep/rpc/internal/autograd_record.h"
#include "lockstep/rpc/internal/gradient_message.h"
#include "lockstep/rpc/internal/transport_error.h"
#include "lockstep/rpc/internal/worker.h"

namespace lockstep::rpc::inline internal {
namespace {

namespace torch_rpc = torch::distributed::rpc;
namespace torch_autograd = torch::distributed::autograd;
using JitFuture = c10::ivalue::Future;

constexpr std::size_t kLongestError = 16384;

thread_local bool thread_serves = false;

// So many are told; a peer that sends nothing else must not fill the log.
constexpr int kMostRefusalsLogged = 20;

// "UsageError", "std::out_of_range", ….
std::string type_name_of(const std::exception& error) {
  const auto* const own = dynamic_cast<const Error*>(&error);
  return own ? own->name() : c10::demangle(typeid(error).name());
}

// Whether the result stays here, behind a reference.
bool keeps_result(const CallRequest& request) {
  return request.kind == CallRequest::Kind::kRemote ||
         request.kind == CallRequest::Kind::kRemoteMethod;
}

// While it lives, calls that this thread makes belong to the caller's context.
class ContextGuard {
 public:
  explicit ContextGuard(std::int64_t context) : before_(Container::currentContextId()) {
    Container::forceCurrentContextId(context);
  }
  ~ContextGuard() { Container::forceCurrentContextId(before_); }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  using Container = torch_autograd::DistAutogradContainer;
  const std::int64_t before_;
};

c10::intrusive_ptr<JitFuture> completed(const Agent& agent,
                                        const c10::intrusive_ptr<torch_rpc::Message>& message) {
  auto future = c10::make_intrusive<JitFuture>(at::AnyClassType::get(), agent.getDevices());
  future->markCompleted(message, message->getStorages());
  return future;
}

}  // namespace

c10::intrusive_ptr<JitFuture> Worker::serve(torch_rpc::Message& message,
                                            std::vector<c10::Stream> streams) {
  const std::int64_t id = message.id();
  const MessageData parcel{std::move(message.payload()), std::move(message.tensors())};
  CallRequest request;
  try {
    check_size(parcel);
    request = read_request(parcel, incoming(Way::kCall));
    find(request.from);
    find(request.holder);
    expect_value(request);
  } catch (const std::exception& error) {
    return completed(*agent_, refuse(error_text(error), parcel.bytes.size(), id));
  }
  using Kind = CallRequest::Kind;
  // A value that is fetched may name others, whose owners are told first: that waits for answers.
  const bool may_wait = request.kind == Kind::kCall || request.kind == Kind::kMethod ||
                        request.kind == Kind::kFetch || keeps_result(request);
  if (!may_wait) return run_call(std::move(request), parcel, streams, id);
  auto answer = c10::make_intrusive<JitFuture>(at::AnyClassType::get(), agent_->getDevices());
  functions_pool_->run([self = shared_from_this(), request = std::move(request),
                        only_tensors = MessageData{{}, parcel.tensors},
                        streams = std::move(streams), id, answer]() mutable {
    thread_serves = true;  // As long as the pool lives.
    self->run_call(std::move(request), only_tensors, streams, id)
        ->addCallback([answer](JitFuture& ready) {
          const auto made = ready.value().toCustomClass<torch_rpc::Message>();
          answer->markCompleted(made, made->getStorages());
        });
  });
  return answer;
}

c10::intrusive_ptr<JitFuture> Worker::refuse_large(std::size_t size_bytes, std::int64_t id) {
  return completed(*agent_,
                   refuse(too_large(size_bytes, options_.max_message_bytes), size_bytes, id));
}

c10::intrusive_ptr<JitFuture> Worker::run_call(CallRequest request, const MessageData& parcel,
                                               const std::vector<c10::Stream>& streams,
                                               std::int64_t id) {
  const c10::MultiStreamGuard on_streams(streams);
  std::optional<ContextGuard> in_context;
  try {
    if (request.autograd) {
      check_autograd(rank_);
      std::vector<at::Tensor> tensors = parcel.tensors;
      const auto context = torch_autograd::addRecvRpcBackward(
          {request.autograd->context, request.autograd->message}, tensors,
          static_cast<torch_rpc::worker_id_t>(request.from), gradients_back_to(request.from));
      context->addKnownWorkerId(static_cast<torch_rpc::worker_id_t>(request.from));
      in_context.emplace(request.autograd->context);
    }
    const c10::IValue value = execute(request);
    if (!value.isFuture())
      return completed(*agent_, answer_with(request, keep(request, value), id));
    auto answer = c10::make_intrusive<JitFuture>(at::AnyClassType::get(), agent_->getDevices());
    value.toFuture()->addCallback(
        [self = shared_from_this(), request, id, answer](JitFuture& later) {
          const std::exception_ptr error = later.hasError() ? later.exception_ptr() : nullptr;
          const c10::IValue result = error ? c10::IValue() : later.value();
          self->run_later([self, request, id, answer, error, result] {
            Answer ready;
            try {
              if (error) std::rethrow_exception(error);
              ready = self->answer_with(request, self->keep(request, result), id);
            } catch (...) {
              ready = self->answer_with(request, std::current_exception(), id);
            }
            answer->markCompleted(ready, ready->getStorages());
          });
        });
    return answer;
  } catch (...) {
    return completed(*agent_, answer_with(request, std::current_exception(), id));
  }
}

// What completes a future may be a thread that all answers come through, and an answer that names
// others' values waits for their owners.
void Worker::run_later(std::function<void()> action) {
  if (!is_serving()) {
    const MutexLock lock(later_mutex_);
    if (later_pool_) return later_pool_->run(std::move(action));
  }
  action();
}

bool Worker::is_serving() {
  return thread_serves;
}

c10::IValue Worker::execute(CallRequest& request) {
  using Kind = CallRequest::Kind;
  switch (request.kind) {
    case Kind::kMethod:
    case Kind::kRemoteMethod:
      request.arguments.insert(request.arguments.begin(), rrefs_.value(request.object));
      [[fallthrough]];
    case Kind::kCall:
    case Kind::kRemote:
      return (*find_function(request.function))(std::move(request.arguments));
    case Kind::kFetch:
      return rrefs_.value(request.object);
    case Kind::kHold:
      rrefs_.hold(request.rref, request.holder);
      return {};
    case Kind::kRelease:
      rrefs_.release(request.rref, request.holder);
      return {};
    case Kind::kHello:
      return {};
  }
  throw UsageError("a request of unknown kind");
}

// Before the function runs: who asked may give the value back before it is made.
void Worker::expect_value(const CallRequest& request) {
  if (!keeps_result(request)) return;
  if (request.rref.owner != rank_ || request.rref.creator != request.from) {
    throw UsageError("a value to keep for another worker");
  }
  rrefs_.expect(request.rref, request.from);
}

c10::IValue Worker::keep(const CallRequest& request, c10::IValue value) {
  if (!keeps_result(request)) return value;
  rrefs_.insert(request.rref, std::move(value));
  return {};
}

Worker::Answer Worker::answer_with(const CallRequest& request, const c10::IValue& value,
                                   std::int64_t id) {
  CallReply answer{.autograd = request.autograd, .value = value};
  if (!answer.autograd) return make_answer(answer, request.from, id);
  auto& container = torch_autograd::DistAutogradContainer::getInstance();
  answer.autograd->message = container.newAutogradMessageId();
  return make_answer(answer, request.from, id);
}

Worker::Answer Worker::answer_with(const CallRequest& request, std::exception_ptr error,
                                   std::int64_t id) {
  if (keeps_result(request)) rrefs_.release(request.rref, request.from);
  CallReply answer;
  try {
    std::rethrow_exception(std::move(error));
  } catch (const std::exception& thrown) {
    answer.error_type = type_name_of(thrown);
    answer.error = error_text(thrown);
  } catch (...) {
    answer.error_type = "an exception";
    answer.error = "that is no std::exception";
  }
  answer.error_type = answer.error_type.substr(0, 256);
  const auto most_bytes = static_cast<std::size_t>(options_.max_message_bytes);
  answer.error = answer.error.substr(0, std::min(kLongestError, most_bytes / 2));
  return make_answer(answer, request.from, id);
}

Worker::Answer Worker::make_answer(const CallReply& answer, int caller, std::int64_t id) {
  Baggage baggage;
  MessageData parcel;
  try {
    parcel = write_answer(answer, outgoing(caller, Way::kAnswer, baggage));
    // An error is told however small messages must be.
    if (answer.error_type.empty()) check_size(parcel);
    if (answer.autograd) record_send(*answer.autograd, parcel.tensors);
  } catch (...) {
    release_all(baggage.held, caller);
    throw;
  }
  agent_->count_served();
  return c10::make_intrusive<torch_rpc::Message>(std::move(parcel.bytes), std::move(parcel.tensors),
                                                 torch_rpc::MessageType::PYTHON_RET, id);
}

Worker::Answer Worker::refuse(const std::string& why, std::size_t size_bytes, std::int64_t id) {
  if (refused_++ < kMostRefusalsLogged) {
    log(LogLevel::kWarning,
        concat("rpc: worker '", name_, "' refused a message of ", size_bytes, " bytes: ", why));
  }
  return make_answer(
      {.error_type = "UsageError", .error = concat("the message was refused: ", why)}, rank_, id);
}

c10::intrusive_ptr<JitFuture> Worker::serve_autograd(torch_rpc::Message& message,
                                                     const Process& process) {
  const std::int64_t id = message.id();
  const std::string_view payload(message.payload().data(), message.payload().size());
  std::unique_ptr<torch_rpc::RpcCommandBase> command;
  try {
    if (message.type() == torch_rpc::MessageType::BACKWARD_AUTOGRAD_REQ) {
      const GradientMessage read = read_gradient_message(payload);
      std::vector<at::Tensor> gradients;
      for (const std::size_t index : read.tensors) gradients.push_back(message.tensors().at(index));
      command = std::make_unique<torch_autograd::PropagateGradientsReq>(
          torch_autograd::AutogradMetadata(read.context, read.message), std::move(gradients),
          read.retain_graph);
    } else if (message.type() == torch_rpc::MessageType::CLEANUP_AUTOGRAD_CONTEXT_REQ) {
      command = std::make_unique<torch_autograd::CleanupAutogradContextReq>(
          read_cleanup_message(payload));
    } else {
      throw UsageError(concat("its type is ", static_cast<int>(message.type()),
                              "; only named functions are called"));
    }
  } catch (const std::exception& error) {
    return completed(*agent_, refuse(error_text(error), payload.size(), id));
  }
  return process(*command)->then(
      [self = shared_from_this(), id](JitFuture& future) {
        c10::intrusive_ptr<torch_rpc::Message> answer;
        if (!future.hasError()) answer = future.value().toCustomClass<torch_rpc::Message>();
        if (!answer || answer->type() == torch_rpc::MessageType::EXCEPTION) {
          std::string text = answer
                                 ? std::string(answer->payload().begin(), answer->payload().end())
                                 : future.tryRetrieveErrorMessage();
          if (const auto lost = self->lost_worker(); lost && is_connection_error(text)) {
            text += lost_worker_text(*lost);
          }
          answer = torch_rpc::createExceptionResponse(reported_text(text), id);
        }
        answer->setId(id);
        self->agent_->count_served();
        return torch_rpc::withStorages(std::move(answer));
      },
      at::AnyClassType::get());
}

}  // namespace lockstep::rpc::inline internal
