#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/custom_class.h>
#include <ATen/core/ivalue.h>

#include "lockstep/base/error.h"
#include "lockstep/rpc/rref.h"

/// Conversion of C++ functions and values to those of calls, and back.
namespace lockstep::rpc {

/// A function that other workers call by name. If its result is a c10::ivalue::Future, the reply is
/// sent when that completes.
using Function = std::function<c10::IValue(std::vector<c10::IValue>)>;

/// An object that stays on its worker: functions take and return it as std::shared_ptr<T>.
template <class T>
struct KeptObject : torch::CustomClassHolder {
  explicit KeptObject(std::shared_ptr<T> kept) : object(std::move(kept)) {}
  std::shared_ptr<T> object;
};

namespace binding {

/// Throws UsageError: the argument is no object of the function's type.
[[noreturn]] void refuse_object();
/// Throws UsageError: the value is not of kind `wanted`.
[[noreturn]] void refuse_kind(const c10::IValue& value, const char* wanted);
/// Throws UsageError: the value is not of type `wanted`.
[[noreturn]] void refuse_type(const c10::IValue& value, const c10::Type& wanted);
/// Throws UsageError: the number is outside [least, most].
[[noreturn]] void refuse_range(std::int64_t value, const std::string& least,
                               const std::string& most);
/// Throws UsageError: the argument at `index` is invalid.
[[noreturn]] void refuse_argument(std::size_t index, const UsageError& error);
/// Throws UsageError: the function takes another number of arguments.
[[noreturn]] void refuse_count(std::size_t takes, std::size_t given);

/// Whether T is std::vector<RRef>.
template <class T>
inline constexpr bool kIsReferences = false;
template <>
inline constexpr bool kIsReferences<std::vector<RRef>> = true;
/// Whether T is a std::shared_ptr.
template <class T>
inline constexpr bool kIsShared = false;
template <class T>
inline constexpr bool kIsShared<std::shared_ptr<T>> = true;

/// The object inside a value.
/// Errors: UsageError if it holds none of type T.
template <class T>
std::shared_ptr<T> kept_object(const c10::IValue& value) {
  if (value.isCapsule()) {
    const auto held = value.toCapsule();
    if (const auto* kept = dynamic_cast<const KeptObject<T>*>(held.get())) return kept->object;
  }
  refuse_object();
}

}  // namespace binding

/// Converts an argument or result to a value of a call.
template <class T>
c10::IValue to_value(T&& result) {
  using Value = std::remove_cvref_t<T>;
  if constexpr (std::is_same_v<Value, RRef>) {
    return result.to_value();
  } else if constexpr (binding::kIsReferences<Value>) {
    c10::impl::GenericList references(c10::AnyType::get());
    for (const RRef& reference : result) references.push_back(reference.to_value());
    return references;
  } else if constexpr (binding::kIsShared<Value>) {
    return c10::IValue::make_capsule(
        c10::make_intrusive<KeptObject<typename Value::element_type>>(std::forward<T>(result)));
  } else if constexpr (std::is_integral_v<Value> && !std::is_same_v<Value, bool>) {
    static_assert(sizeof(Value) <= sizeof(std::int64_t));
    return static_cast<std::int64_t>(result);
  } else if constexpr (std::is_floating_point_v<Value>) {
    return static_cast<double>(result);
  } else if constexpr (std::is_convertible_v<T, std::string_view> &&
                       !std::is_same_v<Value, std::string>) {
    return std::string(std::string_view(result));
  } else {
    return c10::IValue(std::forward<T>(result));
  }
}

/// Converts a value of a call to an argument or result.
/// Errors: UsageError if it has another type, or is a number too large for T.
template <class T>
T from_value(const c10::IValue& value) {
  if constexpr (std::is_same_v<T, c10::IValue>) {
    return value;
  } else if constexpr (std::is_same_v<T, RRef>) {
    return RRef::from_value(value);
  } else if constexpr (binding::kIsReferences<T>) {
    if (!value.isList()) binding::refuse_kind(value, "List");
    std::vector<RRef> references;
    for (const c10::IValue& element : value.toListRef()) {
      references.push_back(RRef::from_value(element));
    }
    return references;
  } else if constexpr (binding::kIsShared<T>) {
    return binding::kept_object<typename T::element_type>(value);
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    if (!value.isInt()) binding::refuse_kind(value, "Int");
    if (!std::in_range<T>(value.toInt())) {
      binding::refuse_range(value.toInt(), std::to_string(std::numeric_limits<T>::min()),
                            std::to_string(std::numeric_limits<T>::max()));
    }
    return static_cast<T>(value.toInt());
  } else if constexpr (std::is_floating_point_v<T>) {
    if (value.isInt()) return static_cast<T>(value.toInt());
    if (!value.isDouble()) binding::refuse_kind(value, "Double");
    return static_cast<T>(value.toDouble());
  } else {
    try {
      return value.to<T>();
    } catch (const c10::Error&) {
      binding::refuse_type(value, *c10::getTypePtr<T>());
    }
  }
}

namespace binding {

/// Converts the argument at `index`.
/// Errors: UsageError that names the index.
template <class T>
T argument(const std::vector<c10::IValue>& arguments, std::size_t index) {
  try {
    return from_value<T>(arguments[index]);
  } catch (const UsageError& error) {
    refuse_argument(index, error);
  }
}

/// Calls the function with converted arguments; converts its result.
template <class Result, class... Arguments, std::size_t... Indices>
c10::IValue apply(const std::function<Result(Arguments...)>& function,
                  const std::vector<c10::IValue>& arguments, std::index_sequence<Indices...>) {
  if constexpr (std::is_void_v<Result>) {
    function(argument<std::remove_cvref_t<Arguments>>(arguments, Indices)...);
    return {};
  } else {
    return to_value(function(argument<std::remove_cvref_t<Arguments>>(arguments, Indices)...));
  }
}

/// Wraps a function with typed arguments as a Function.
template <class Result, class... Arguments>
Function bind(std::function<Result(Arguments...)> function) {
  return [function = std::move(function)](std::vector<c10::IValue> arguments) {
    if (arguments.size() != sizeof...(Arguments)) {
      refuse_count(sizeof...(Arguments), arguments.size());
    }
    return apply(function, arguments, std::index_sequence_for<Arguments...>());
  };
}

/// A Function that takes all arguments as they are.
inline Function bind(Function function) {
  return function;
}

}  // namespace binding

/// As register_function, for a Function.
void add_function(const std::string& name, Function function);

/// Lets other workers call `function` by `name`. Register it before rpc::init; then every worker
/// can call it from the start.
///
/// Arguments and results: tensors, numbers, bool, std::string; std::vector, c10::Dict,
/// std::unordered_map, std::optional or std::tuple of these; c10::IValue; RRef; std::shared_ptr<T>
/// to an object that stays on this worker. A function c10::IValue(std::vector<c10::IValue>) takes
/// any arguments. A function that returns a c10::intrusive_ptr<c10::ivalue::Future> replies when
/// that completes, and holds no thread until it does.
///
/// Threads: calls run on the worker's threads, several at a time.
/// Errors: UsageError for an empty name, and for one that is already registered.
template <class Callable>
void register_function(const std::string& name, Callable&& callable) {
  add_function(name, binding::bind(std::function(std::forward<Callable>(callable))));
}

/// Removes a registered function; unknown names are ignored.
void unregister_function(const std::string& name);

}  // namespace lockstep::rpc
