#pragma once

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/base/error.h"

/// Arguments and results of a module's forward: tensors, and vectors, optionals, pairs and tuples
/// of them, however nested. Anything else is a value that is copied.
namespace lockstep::data_parallel {

template <class T>
inline constexpr bool kIsVector = false;
template <class T>
inline constexpr bool kIsVector<std::vector<T>> = true;
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
inline constexpr bool kIsTuple = false;
template <class... Ts>
inline constexpr bool kIsTuple<std::tuple<Ts...>> = true;
template <class T, class U>
inline constexpr bool kIsTuple<std::pair<T, U>> = true;

template <class T>
inline constexpr bool kHoldsTensors = std::is_same_v<T, at::Tensor>;
template <class T>
inline constexpr bool kHoldsTensors<std::vector<T>> = kHoldsTensors<T>;
template <class T>
inline constexpr bool kHoldsTensors<std::optional<T>> = kHoldsTensors<T>;
template <class... Ts>
inline constexpr bool kHoldsTensors<std::tuple<Ts...>> = (kHoldsTensors<Ts> || ...);
template <class T, class U>
inline constexpr bool kHoldsTensors<std::pair<T, U>> = kHoldsTensors<T> || kHoldsTensors<U>;

/// The same structure with each tensor replaced by what `map` makes of it.
template <class T, class Map>
T map_tensors(const T& value, const Map& map) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return map(value);
  } else if constexpr (!kHoldsTensors<T>) {
    return value;
  } else if constexpr (kIsVector<T>) {
    T mapped;
    for (const auto& element : value) mapped.push_back(map_tensors(element, map));
    return mapped;
  } else if constexpr (kIsOptional<T>) {
    return value ? T(map_tensors(*value, map)) : T();
  } else {
    return std::apply([&](const auto&... elements) { return T{map_tensors(elements, map)...}; },
                      value);
  }
}

/// One structure of several alike, with `gather` applied to the list of tensors in each place.
template <class T, class Gather>
T gather_values(const std::vector<T>& values, const Gather& gather) {
  static_assert(kHoldsTensors<T>,
                "DataParallel gathers tensors, and vectors, optionals, pairs and tuples of them; "
                "let the module's forward return such");
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return gather(values);
  } else if constexpr (kIsVector<T>) {
    T gathered;
    for (std::size_t i = 0; i < values[0].size(); ++i) {
      std::vector<typename T::value_type> elements;
      for (const T& value : values) {
        if (value.size() != values[0].size()) {
          throw UsageError(
              "DataParallel: the replicas returned vectors of different sizes; let forward return "
              "as many tensors for every part of a batch");
        }
        elements.push_back(value[i]);
      }
      gathered.push_back(gather_values(elements, gather));
    }
    return gathered;
  } else if constexpr (kIsOptional<T>) {
    std::vector<typename T::value_type> elements;
    for (const T& value : values) {
      if (value) elements.push_back(*value);
    }
    if (elements.empty()) return T();
    if (elements.size() != values.size()) {
      throw UsageError(
          "DataParallel: some replicas returned a value and some none; let forward return it for "
          "every part of a batch or for none");
    }
    return gather_values(elements, gather);
  } else {
    const auto gather_place = [&]<std::size_t I>(std::integral_constant<std::size_t, I>) {
      std::vector<std::tuple_element_t<I, T>> elements;
      for (const T& value : values) elements.push_back(std::get<I>(value));
      return gather_values(elements, gather);
    };
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return T{gather_place(std::integral_constant<std::size_t, I>())...};
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  }
}

}  // namespace lockstep::data_parallel
