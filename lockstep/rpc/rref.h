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

/// A reference to a value that is kept on its owner, from this or any other worker: torch's RRef.
/// It may be an argument or a result of any call; copies refer to the same value, which goes when
/// no worker has a reference any more. (Counted on the owner: whoever passes a reference on says
/// first who will have it. Those of a worker that died are given back when its owner notices:
/// inside a machine at once, else when a call to it fails; those in an answer that nobody waited
/// for, when the session ends.) Threads: as c10::IValue. Lifetime: of no use after rpc::shutdown.
class RRef {
 public:
  /// None; only operator bool works.
  RRef() = default;
  explicit operator bool() const { return static_cast<bool>(state_); }

  /// To a value of this worker, kept here: also a std::shared_ptr<T> to any object.
  template <class T>
  static RRef to(T&& value);

  /// Its rank.
  int owner() const;
  bool is_owner() const;

  /// Returns once the owner has the value. Errors: why there will be none, as rpc::call.
  void wait_until_made() const;

  /// A copy of the value, from its owner. Errors: what made the value, if that failed
  /// (RemoteError); UsageError for one that cannot be sent; else as call().
  template <class T = c10::IValue>
  T to_here(std::optional<std::chrono::milliseconds> timeout = std::nullopt) const;

  /// The value itself, on its owner. Errors: UsageError elsewhere.
  template <class T = c10::IValue>
  T local_value() const;

  /// Calls the function registered as `function` on the owner, with the value as its first
  /// argument: the way to an object's methods.
  template <class Result = c10::IValue, class... Arguments>
  Result call(std::string_view function, Arguments&&... arguments) const;
  template <class Result = c10::IValue, class... Arguments>
  Future<Result> call_async(std::string_view function, Arguments&&... arguments) const;
  /// As call_async; the result stays with the owner too.
  template <class... Arguments>
  RRef remote(std::string_view function, Arguments&&... arguments) const;
  /// As call, with a deadline of its own.
  template <class Result = c10::IValue, class... Arguments>
  Result call_for(std::chrono::milliseconds timeout, std::string_view function,
                  Arguments&&... arguments) const;

  /// `state`: an RRefState.
  explicit RRef(c10::intrusive_ptr<c10::RRefInterface> state) : state_(std::move(state)) {}

  /// As an argument, and back. Errors: UsageError for a value that is none.
  c10::IValue to_value() const;
  static RRef from_value(const c10::IValue& value);

  const RRefState& state() const;

 private:
  c10::intrusive_ptr<c10::RRefInterface> state_;
};

}  // namespace lockstep::rpc
