#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/ivalue.h>
#include <ATen/core/rref_interface.h>

namespace lockstep::rpc {

inline namespace internal {
class RRefState;
}
template <class Result>
class Future;

/// Reference to a value on its owner, from this or any other worker, as torch's RRef. It may be an
/// argument or a result of any call. Copies refer to the same value, which is destroyed with the
/// last reference on any worker.
///
/// The owner counts references: a worker that passes a reference on first tells the owner which
/// worker will have it. The references of a lost worker are released when the owner notices: at
/// once inside a machine, else when a call to it fails. References in a reply that no caller waited
/// for are released at the end of the session.
///
/// Threads: as c10::IValue.
/// Lifetime: unusable after rpc::shutdown.
class RRef {
 public:
  /// An empty reference; only operator bool works.
  RRef() = default;
  explicit operator bool() const { return static_cast<bool>(state_); }

  /// A reference to a value that stays on this worker; also to any object by std::shared_ptr<T>.
  template <class T>
  static RRef to(T&& value);

  /// The owner's rank.
  int owner() const;
  /// Whether this worker is the owner.
  bool is_owner() const;

  /// Waits until the owner has the value.
  /// Errors: as rpc::call, if there will be no value.
  void wait_until_ready() const;

  /// Copies the value from its owner.
  /// Errors: RemoteError if the function that makes the value failed; UsageError for a value that
  /// cannot be sent; else as call().
  template <class T = c10::IValue>
  T to_here(std::optional<std::chrono::milliseconds> timeout = std::nullopt) const;

  /// The value itself, on its owner.
  /// Errors: UsageError on other workers.
  template <class T = c10::IValue>
  T local_value() const;

  /// Calls the function registered as `function` on the owner, with the value as first argument:
  /// the way to call an object's methods.
  /// Errors: as rpc::call.
  template <class Result = c10::IValue, class... Arguments>
  Result call(std::string_view function, Arguments&&... arguments) const;
  /// The same without waiting for the reply.
  template <class Result = c10::IValue, class... Arguments>
  Future<Result> call_async(std::string_view function, Arguments&&... arguments) const;
  /// As call_async; the result stays on the owner too.
  template <class... Arguments>
  RRef remote(std::string_view function, Arguments&&... arguments) const;
  /// As call, with its own timeout.
  template <class Result = c10::IValue, class... Arguments>
  Result call_for(std::chrono::milliseconds timeout, std::string_view function,
                  Arguments&&... arguments) const;

  /// `state`: an RRefState.
  explicit RRef(c10::intrusive_ptr<c10::RRefInterface> state) : state_(std::move(state)) {}

  /// Converts it to a value of a call.
  c10::IValue to_value() const;
  /// Converts it back.
  /// Errors: UsageError for a value that is no reference.
  static RRef from_value(const c10::IValue& value);

  /// Its implementation.
  /// Errors: UsageError for an empty reference.
  const RRefState& state() const;

 private:
  c10::intrusive_ptr<c10::RRefInterface> state_;
};

}  // namespace lockstep::rpc
