#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <c10/core/Device.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/rpc/function_binding.h"
#include "lockstep/rpc/future.h"
#include "lockstep/rpc/rref.h"

/// Remote procedure calls between the ranks of a group, which become workers with names:
///
/// ```cpp
/// rpc::register_function("add", [](const at::Tensor& a, double b) { return a + b; });
/// auto session = rpc::init(group.rank() == 0 ? "trainer" : "server", group);
/// if (group.rank() == 0) auto sum = rpc::call<at::Tensor>("server", "add", torch::ones(3), 2);
/// rpc::shutdown();
/// ```
///
/// Workers of one machine communicate over Unix sockets, others over LibTorch's TensorPipe agent
/// (docs/decisions/0015-calls-inside-a-machine.md). Only functions registered by name are called;
/// nothing that is received is executed or unpickled (docs/security.md).
namespace lockstep::rpc {

inline namespace internal {
class Worker;
}

/// By name of the other worker: a map from devices here to devices there.
using DeviceMaps = std::map<std::string, std::unordered_map<c10::Device, c10::Device>>;

/// Options of a worker; names are those of torch.distributed.rpc.
struct Options {
  /// Timeout of init, shutdown, and calls without a timeout of their own.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  /// Threads that run functions for other workers. A function that waits for another worker holds
  /// its thread; if all of them wait, further calls wait too, and time out.
  int num_worker_threads = 16;
  /// Largest message in bytes, tensors included; a larger one is neither sent nor accepted.
  std::int64_t max_message_bytes = std::int64_t{4} << 30;
  /// Target devices of CUDA tensors; results return by the same map. A CUDA tensor on a device
  /// without an entry cannot be sent.
  DeviceMaps device_maps = {};
};

/// Name and rank of a worker.
struct WorkerInfo {
  std::string name;
  int rank = 0;
  bool operator==(const WorkerInfo&) const = default;
};

/// This process's session: until it is destroyed, or until rpc::shutdown, calls can be made and are
/// served. The destructor closes the connections at once, which ends calls in flight on both sides.
/// It waits for no peer, but for functions of this worker that are still running.
class [[nodiscard]] Session {
 public:
  explicit Session(std::shared_ptr<Worker> worker) : worker_(std::move(worker)) {}
  ~Session();
  Session(Session&&) noexcept = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  Session& operator=(Session&&) = delete;

 private:
  std::shared_ptr<Worker> worker_;
};

/// Starts a session. Collective over the group (default: the default group). Each worker needs a
/// unique name; its rank is that in the group. When it returns on any worker, all functions
/// registered before can be called. A process may have one session after another; its rank may
/// change, unless it uses distributed autograd.
/// Threads: call from the main thread.
/// Errors: UsageError for invalid names or device maps, and if a session exists; PeerLost and
/// TimeoutError that name ranks that are lost or did not call it; CommError.
Session init(const std::string& name, ProcessGroup group = {}, const Options& options = {});
/// Whether this process has a session.
bool is_initialized();

/// Waits until no call is in flight on any worker, then ends the session. Collective.
/// Errors: TimeoutError; PeerLost for a lost worker; UsageError in a function that another worker
/// called. After TimeoutError and PeerLost the session has ended.
void shutdown(std::optional<std::chrono::milliseconds> timeout = std::nullopt);

/// The worker of this name or rank.
/// Errors: UsageError for an unknown one.
WorkerInfo worker(const std::string& name);
WorkerInfo worker(int rank);
/// The worker of this process.
WorkerInfo this_worker();
/// All workers of the session.
std::vector<WorkerInfo> workers();

/// The worker to call, by name or rank, and the timeout: "server", 1, {"server", 5s}.
class Target {
 public:
  /// Timeout of a call; nullopt: Options::timeout.
  using Timeout = std::optional<std::chrono::milliseconds>;

  Target(const char* name, Timeout timeout = {}) : name_(name), timeout_(timeout) {}  // NOLINT
  Target(std::string name, Timeout timeout = {})                                      // NOLINT
      : name_(std::move(name)), timeout_(timeout) {}
  Target(int rank, Timeout timeout = {}) : rank_(rank), timeout_(timeout) {}  // NOLINT
  Target(const WorkerInfo& worker, Timeout timeout = {})
      : Target(worker.rank, timeout) {}  // NOLINT

  /// The worker's name; empty if the target is a rank.
  const std::string& name() const { return name_; }
  /// The worker's rank; nullopt if the target is a name.
  std::optional<int> rank() const { return rank_; }
  /// The timeout of the call.
  Timeout timeout() const { return timeout_; }

 private:
  std::string name_;
  std::optional<int> rank_;
  Timeout timeout_;
};

/// Sends a call of a registered function; used by the templates below.
std::shared_ptr<PendingCall> start_call(const Target& target, std::string_view function,
                                        std::vector<c10::IValue> arguments);
/// Sends a call to the owner of a value, which is the first argument.
std::shared_ptr<PendingCall> start_method(const RRef& object, std::string_view function,
                                          std::vector<c10::IValue> arguments,
                                          Target::Timeout timeout = {});
/// Requests a copy of a value from its owner.
std::shared_ptr<PendingCall> start_fetch(const RRef& value, Target::Timeout timeout);
/// Sends a call whose result stays on the target.
RRef start_remote(const Target& target, std::string_view function,
                  std::vector<c10::IValue> arguments);
/// Sends a call to the owner of a value; the result stays there.
RRef start_remote_method(const RRef& object, std::string_view function,
                         std::vector<c10::IValue> arguments);
/// Keeps a value on this worker, and returns a reference to it.
RRef keep_here(c10::IValue value);
/// The value of a reference, on its owner.
/// Errors: UsageError on other workers.
c10::IValue kept_value(const RRef& value);

/// Converts arguments to values of a call.
template <class... Arguments>
std::vector<c10::IValue> to_values(Arguments&&... arguments) {
  std::vector<c10::IValue> values;
  values.reserve(sizeof...(Arguments));
  (values.push_back(to_value(std::forward<Arguments>(arguments))), ...);
  return values;
}

/// Calls the function that the target registered as `function`, and waits for its result.
/// Errors: RemoteError with what the function threw; PeerLost as soon as the worker is lost;
/// TimeoutError; UsageError for arguments that cannot be sent.
template <class Result = c10::IValue, class... Arguments>
Result call(const Target& target, std::string_view function, Arguments&&... arguments) {
  return Future<Result>(
             start_call(target, function, to_values(std::forward<Arguments>(arguments)...)))
      .wait();
}

/// As call, without waiting for the reply: the future throws errors of the call. If an RRef among
/// the arguments refers to a value that is not yet made, it waits for that. Tensors are read until
/// they are sent: do not change them in place before the reply. Likewise a function must return a
/// copy of a tensor that it changes later.
template <class Result = c10::IValue, class... Arguments>
Future<Result> call_async(const Target& target, std::string_view function,
                          Arguments&&... arguments) {
  return Future<Result>(
      start_call(target, function, to_values(std::forward<Arguments>(arguments)...)));
}

/// As call_async, but the result stays on the target; returns a reference to it at once.
template <class... Arguments>
RRef remote(const Target& target, std::string_view function, Arguments&&... arguments) {
  return start_remote(target, function, to_values(std::forward<Arguments>(arguments)...));
}

template <class T>
RRef RRef::to(T&& value) {
  return keep_here(rpc::to_value(std::forward<T>(value)));
}

template <class T>
T RRef::to_here(std::optional<std::chrono::milliseconds> timeout) const {
  return Future<T>(start_fetch(*this, timeout)).wait();
}

template <class T>
T RRef::local_value() const {
  return rpc::from_value<T>(kept_value(*this));
}

template <class Result, class... Arguments>
Result RRef::call(std::string_view function, Arguments&&... arguments) const {
  return call_async<Result>(function, std::forward<Arguments>(arguments)...).wait();
}

template <class... Arguments>
RRef RRef::remote(std::string_view function, Arguments&&... arguments) const {
  return start_remote_method(*this, function, to_values(std::forward<Arguments>(arguments)...));
}

template <class Result, class... Arguments>
Result RRef::call_for(std::chrono::milliseconds timeout, std::string_view function,
                      Arguments&&... arguments) const {
  return Future<Result>(start_method(*this, function,
                                     to_values(std::forward<Arguments>(arguments)...), timeout))
      .wait();
}

template <class Result, class... Arguments>
Future<Result> RRef::call_async(std::string_view function, Arguments&&... arguments) const {
  return Future<Result>(
      start_method(*this, function, to_values(std::forward<Arguments>(arguments)...)));
}

}  // namespace lockstep::rpc
