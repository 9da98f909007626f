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
#include "lockstep/base/internal/concat.h"
#include "lockstep/rpc/function_table.h"
#include "lockstep/rpc/rref.h"

/// How C++ functions and values become those of calls, and back.
namespace lockstep::rpc {

/// An object that stays where it was made: what functions give and take as std::shared_ptr<T>.
template <class T>
struct KeptObject : torch::CustomClassHolder {
  explicit KeptObject(std::shared_ptr<T> kept) : object(std::move(kept)) {}
  std::shared_ptr<T> object;
};

namespace binding {

template <class T>
inline constexpr bool kIsReferences = false;
template <>
inline constexpr bool kIsReferences<std::vector<RRef>> = true;
template <class T>
inline constexpr bool kIsShared = false;
template <class T>
inline constexpr bool kIsShared<std::shared_ptr<T>> = true;

template <class T>
std::shared_ptr<T> kept_object(const c10::IValue& value) {
  if (value.isCapsule()) {
    const auto held = value.toCapsule();
    if (const auto* kept = dynamic_cast<const KeptObject<T>*>(held.get())) return kept->object;
  }
  throw UsageError("it is no object of the type that the function takes; pass an RRef to one");
}

}  // namespace binding

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

/// Errors: UsageError where the value is of another type, or a number too large for T.
template <class T>
T from_value(const c10::IValue& value) {
  if constexpr (std::is_same_v<T, c10::IValue>) {
    return value;
  } else if constexpr (std::is_same_v<T, RRef>) {
    return RRef::from_value(value);
  } else if constexpr (binding::kIsReferences<T>) {
    if (!value.isList()) throw UsageError(concat("it is of type ", value.tagKind(), ", not List"));
    std::vector<RRef> references;
    for (const c10::IValue& element : value.toListRef()) {
      references.push_back(RRef::from_value(element));
    }
    return references;
  } else if constexpr (binding::kIsShared<T>) {
    return binding::kept_object<typename T::element_type>(value);
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    if (!value.isInt()) throw UsageError(concat("it is of type ", value.tagKind(), ", not Int"));
    if (!std::in_range<T>(value.toInt())) {
      throw UsageError(concat(value.toInt(), " is not within ", +std::numeric_limits<T>::min(),
                              " to ", +std::numeric_limits<T>::max()));
    }
    return static_cast<T>(value.toInt());
  } else if constexpr (std::is_floating_point_v<T>) {
    if (value.isInt()) return static_cast<T>(value.toInt());
    if (!value.isDouble())
      throw UsageError(concat("it is of type ", value.tagKind(), ", not Double"));
    return static_cast<T>(value.toDouble());
  } else {
    try {
      return value.to<T>();
    } catch (const c10::Error&) {
      throw UsageError(
          concat("it is of type ", value.type()->str(), ", not ", c10::getTypePtr<T>()->str()));
    }
  }
}

namespace binding {

template <class T>
T argument(const std::vector<c10::IValue>& arguments, std::size_t index) {
  try {
    return from_value<T>(arguments[index]);
  } catch (const UsageError& error) {
    throw UsageError(concat("argument ", index + 1, ": ", error.what()));
  }
}

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

template <class Result, class... Arguments>
FunctionTable::Function bind(std::function<Result(Arguments...)> function) {
  return [function = std::move(function)](std::vector<c10::IValue> arguments) {
    if (arguments.size() != sizeof...(Arguments)) {
      throw UsageError(
          concat("it takes ", sizeof...(Arguments), " arguments, not ", arguments.size()));
    }
    return apply(function, arguments, std::index_sequence_for<Arguments...>());
  };
}

// Takes what comes.
inline FunctionTable::Function bind(FunctionTable::Function function) {
  return function;
}

}  // namespace binding

/// Lets other workers call `function` by `name`: any callable whose arguments and result are
/// tensors, numbers, bool, std::string, std::vector, c10::Dict, std::unordered_map, std::optional
/// or std::tuple of these, c10::IValue, RRef, or std::shared_ptr<T> to an object that stays on this
/// worker. One of type c10::IValue(std::vector<c10::IValue>) takes whatever comes; one that returns
/// a c10::intrusive_ptr<c10::ivalue::Future> is answered when that is complete, and holds no thread
/// until then. Calls run on threads of the worker, several at a time.
/// Errors: UsageError for a name that is taken.
template <class Callable>
void register_function(const std::string& name, Callable&& callable) {
  functions().add(name, binding::bind(std::function(std::forward<Callable>(callable))));
}

inline void unregister_function(const std::string& name) {
  functions().remove(name);
}

}  // namespace lockstep::rpc
