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

/// Remote procedure calls between the ranks of a group, which are then workers with names:
///
///   rpc::register_function("add", [](const at::Tensor& a, double b) { return a + b; });
///   auto session = rpc::init(group.rank() == 0 ? "trainer" : "server", group);
///   if (group.rank() == 0) auto sum = rpc::call<at::Tensor>("server", "add", torch::ones(3), 2);
///   rpc::shutdown();
///
/// Between workers of one machine messages go over Unix sockets, else over LibTorch's TensorPipe
/// agent (docs/decisions/0015-calls-inside-a-machine.md). Only functions registered by name are
/// called; nothing that comes is executed or unpickled (docs/security.md).
namespace lockstep::rpc {

inline namespace internal {
class Worker;
}

/// By the name of the other worker, from a device here to one there.
using DeviceMaps = std::map<std::string, std::unordered_map<c10::Device, c10::Device>>;

/// Options of a worker; names are those of torch.distributed.rpc.
struct Options {
  /// Timeout of init, shutdown, and calls without a timeout of their own.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  /// Threads that run what others call: as many functions at once. One that waits for another
  /// worker holds its thread meanwhile; where all of them wait, further calls wait too, and time
  /// out.
  int num_worker_threads = 16;
  /// A message, tensors included, that is larger is not sent, and is refused where it comes.
  std::int64_t max_message_bytes = std::int64_t{4} << 30;
  /// Where CUDA tensors go. Results come back the same way. Without one for its device a CUDA
  /// tensor cannot be sent.
  DeviceMaps device_maps = {};
};

/// Another worker, or this one.
struct WorkerInfo {
  std::string name;
  int rank = 0;
  bool operator==(const WorkerInfo&) const = default;
};

/// This process's part: until it ends, or rpc::shutdown, calls can be made and are served.
/// Its end closes the connections at once, which ends calls under way on both sides, and waits for
/// no peer; but for functions of this worker that are still running.
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

/// Collective over the group (default: the default group). Each name is one worker's; its rank is
/// that in the group. What was registered before can be called as soon as it returns anywhere.
/// Sessions of a process come one after the other; its rank may be another each time, but for
/// distributed autograd.
/// Threads: main thread. Errors: UsageError for names or device maps that cannot be, and while
/// there is a session; PeerLost and TimeoutError naming ranks that are gone or did not come;
/// CommError.
Session init(const std::string& name, ProcessGroup group = {}, const Options& options = {});
bool is_initialized();

/// Collective: returns once no call is under way anywhere, and ends the session.
/// Errors: TimeoutError, PeerLost for a worker that died; the session has ended all the same.
void shutdown(std::optional<std::chrono::milliseconds> timeout = std::nullopt);

/// Errors: UsageError for one that is not there.
WorkerInfo worker(const std::string& name);
WorkerInfo worker(int rank);
WorkerInfo this_worker();
std::vector<WorkerInfo> workers();

/// Whom to call, by name or rank, and how long to wait: "server", 1, {"server", 5s}.
class Target {
 public:
  using Timeout = std::optional<std::chrono::milliseconds>;

  Target(const char* name, Timeout timeout = {}) : name_(name), timeout_(timeout) {}  // NOLINT
  Target(std::string name, Timeout timeout = {})                                      // NOLINT
      : name_(std::move(name)), timeout_(timeout) {}
  Target(int rank, Timeout timeout = {}) : rank_(rank), timeout_(timeout) {}  // NOLINT
  Target(const WorkerInfo& worker, Timeout timeout = {})
      : Target(worker.rank, timeout) {}  // NOLINT

  const std::string& name() const { return name_; }
  /// Unset where it is meant by name.
  std::optional<int> rank() const { return rank_; }
  Timeout timeout() const { return timeout_; }

 private:
  std::string name_;
  std::optional<int> rank_;
  Timeout timeout_;
};

/// What the templates below are made of.
std::shared_ptr<PendingCall> start_call(const Target& target, std::string_view function,
                                        std::vector<c10::IValue> arguments);
std::shared_ptr<PendingCall> start_method(const RRef& object, std::string_view function,
                                          std::vector<c10::IValue> arguments,
                                          Target::Timeout timeout = {});
std::shared_ptr<PendingCall> start_fetch(const RRef& value, Target::Timeout timeout);
RRef start_remote(const Target& target, std::string_view function,
                  std::vector<c10::IValue> arguments);
RRef start_remote_method(const RRef& object, std::string_view function,
                         std::vector<c10::IValue> arguments);
RRef keep_here(c10::IValue value);
c10::IValue kept_value(const RRef& value);

template <class... Arguments>
std::vector<c10::IValue> to_values(Arguments&&... arguments) {
  std::vector<c10::IValue> values;
  values.reserve(sizeof...(Arguments));
  (values.push_back(to_value(std::forward<Arguments>(arguments))), ...);
  return values;
}

/// Calls the function that the target registered as `function`, and waits for its result.
/// Errors: RemoteError with what it threw; PeerLost when the worker is gone, at once; TimeoutError;
/// UsageError for arguments that cannot be sent.
template <class Result = c10::IValue, class... Arguments>
Result call(const Target& target, std::string_view function, Arguments&&... arguments) {
  return Future<Result>(
             start_call(target, function, to_values(std::forward<Arguments>(arguments)...)))
      .wait();
}

/// As call, without waiting: errors of the call come from the future. (An RRef among the arguments
/// whose value is still being made is waited for.) Tensors are read until they are sent: change
/// none in place before there is an answer. The same holds for what a function returns: a copy of
/// what goes on changing.
template <class Result = c10::IValue, class... Arguments>
Future<Result> call_async(const Target& target, std::string_view function,
                          Arguments&&... arguments) {
  return Future<Result>(
      start_call(target, function, to_values(std::forward<Arguments>(arguments)...)));
}

/// As call_async; the result stays on the target, and what comes back at once refers to it.
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
