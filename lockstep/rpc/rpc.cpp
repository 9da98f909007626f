#include "lockstep/rpc/rpc.h"

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/internal/comm_error.h"
#include "lockstep/comm/internal/error_text.h"
#include "lockstep/rpc/internal/rref_state.h"
#include "lockstep/rpc/internal/worker.h"

namespace lockstep::rpc {
namespace {

int rank_of(const Worker& worker, const Target& target) {
  return target.rank() ? worker.find(*target.rank()).rank : worker.find(target.name()).rank;
}

// A request that needs the value: returns once that is made.
std::shared_ptr<PendingCall> send_to_owner(const RRef& value, CallRequest request,
                                           Target::Timeout timeout) {
  const RRefState& state = value.state();
  state.wait_until_ready();
  request.object = state.key();
  return state.worker()->send(state.key().owner, std::move(request), timeout, {value.to_value()});
}

// What init() ends with where the store did not answer.
[[noreturn]] void throw_without_store(const std::string& worker, const ProcessGroup& group,
                                      const c10::Error& error) {
  ErrorFields fields{.operation = concat("rpc::init of worker '", worker, "'"),
                     .group = group.name(),
                     .own_rank = group.rank()};
  // In another group rank 0 may be another process than the one that serves the store.
  const ProcessGroup job = group_or_default({});
  if (job && job.name() == group.name()) fields.ranks = {0};
  const std::string text = error_text(error);
  switch (failure_of(text)) {
    case CommFailure::kPeerLost:
      throw PeerLost(fields, "lost the job's store, which rank 0 serves; look at how rank 0 ended");
    case CommFailure::kTimeout:
      throw TimeoutError(fields, concat("no answer from the job's store: ", text));
    case CommFailure::kOther:
      break;
  }
  throw CommError(fields, text);
}

}  // namespace

Session::~Session() {
  if (!worker_) return;
  if (current_worker_or_null() == worker_) set_current_worker(nullptr);
  worker_->stop();
}

Session init(const std::string& name, ProcessGroup group, const Options& options) {
  if (is_initialized())
    throw UsageError("rpc::init: there is a session already; rpc::shutdown ends it");
  group = group_or_default(std::move(group));
  if (!group)
    throw UsageError("rpc::init: there is no process group; call init_process_group first");
  auto worker = std::make_shared<Worker>(name, group, options);
  // Calls of others may come, and make calls of their own, before start() returns.
  set_current_worker(worker);
  Session session(worker);
  try {
    worker->start();
  } catch (const c10::Error& error) {
    throw_without_store(name, group, error);
  }
  return session;
}

bool is_initialized() {
  return current_worker_or_null() != nullptr;
}

void shutdown(std::optional<std::chrono::milliseconds> timeout) {
  const auto worker = current_worker();
  if (worker->is_serving()) {
    throw UsageError("rpc::shutdown: in a function that another worker called; leave it to main()");
  }
  const Session ending(worker);
  worker->finish(Deadline::after(timeout.value_or(worker->options().timeout)));
}

WorkerInfo worker(const std::string& name) {
  return current_worker()->find(name);
}

WorkerInfo worker(int rank) {
  return current_worker()->find(rank);
}

WorkerInfo this_worker() {
  const auto worker = current_worker();
  return worker->find(worker->rank());
}

std::vector<WorkerInfo> workers() {
  return current_worker()->workers();
}

std::shared_ptr<PendingCall> start_call(const Target& target, std::string_view function,
                                        std::vector<c10::IValue> arguments) {
  const auto worker = current_worker();
  return worker->send(rank_of(*worker, target),
                      {.kind = CallRequest::Kind::kCall,
                       .function = std::string(function),
                       .arguments = std::move(arguments)},
                      target.timeout());
}

std::shared_ptr<PendingCall> start_method(const RRef& object, std::string_view function,
                                          std::vector<c10::IValue> arguments,
                                          Target::Timeout timeout) {
  return send_to_owner(object,
                       {.kind = CallRequest::Kind::kMethod,
                        .function = std::string(function),
                        .arguments = std::move(arguments)},
                       timeout);
}

std::shared_ptr<PendingCall> start_fetch(const RRef& value, Target::Timeout timeout) {
  return send_to_owner(value, {.kind = CallRequest::Kind::kFetch}, timeout);
}

RRef start_remote(const Target& target, std::string_view function,
                  std::vector<c10::IValue> arguments) {
  const auto worker = current_worker();
  const int owner = rank_of(*worker, target);
  const RRefKey key = worker->next_key(owner);
  auto making = worker->send(owner,
                             {.kind = CallRequest::Kind::kRemote,
                              .rref = key,
                              .function = std::string(function),
                              .arguments = std::move(arguments)},
                             target.timeout());
  return RRef(c10::make_intrusive<RRefState>(worker, key, std::move(making)));
}

RRef start_remote_method(const RRef& object, std::string_view function,
                         std::vector<c10::IValue> arguments) {
  const auto worker = object.state().worker();
  const RRefKey key = worker->next_key(object.owner());
  auto making = send_to_owner(object,
                              {.kind = CallRequest::Kind::kRemoteMethod,
                               .rref = key,
                               .function = std::string(function),
                               .arguments = std::move(arguments)},
                              std::nullopt);
  return RRef(c10::make_intrusive<RRefState>(worker, key, std::move(making)));
}

RRef keep_here(c10::IValue value) {
  const auto worker = current_worker();
  const RRefKey key = worker->next_key(worker->rank());
  worker->rrefs().expect(key, worker->rank());
  worker->rrefs().insert(key, std::move(value));
  return RRef(c10::make_intrusive<RRefState>(worker, key));
}

c10::IValue kept_value(const RRef& value) {
  const RRefState& state = value.state();
  const auto worker = state.worker();
  if (worker->rank() != state.key().owner) {
    throw UsageError(concat("rpc: local_value on worker '", worker->find(worker->rank()).name,
                            "' of a value that '", state.ownerName(),
                            "' owns; use to_here(), or call a function there"));
  }
  state.wait_until_ready();
  return worker->rrefs().value(state.key());
}

}  // namespace lockstep::rpc
