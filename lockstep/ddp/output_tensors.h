#pragma once

#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Whether T is a tensor, or made of such: containers, maps, pairs, tuples and optionals of them.
template <class T>
struct HoldsTensors : std::false_type {};
template <>
struct HoldsTensors<at::Tensor> : std::true_type {};
template <class T>
struct HoldsTensors<std::optional<T>> : HoldsTensors<T> {};
template <class... T>
struct HoldsTensors<std::tuple<T...>>
    : std::bool_constant<(HoldsTensors<std::remove_cvref_t<T>>::value || ...)> {};
template <class First, class Second>
struct HoldsTensors<std::pair<First, Second>> : HoldsTensors<std::tuple<First, Second>> {};
template <class T>
requires(std::ranges::input_range<T> && !std::is_same_v<T, at::Tensor>) struct HoldsTensors<T>
    : HoldsTensors<std::remove_cvref_t<std::ranges::range_value_t<T>>> {
};

/// Appends the tensors that a module's output holds. What holds none is passed over.
template <class T>
void collect_tensors(const T& output, std::vector<at::Tensor>& tensors) {
  if constexpr (std::is_base_of_v<at::Tensor, T>) {
    tensors.push_back(output);
  } else if constexpr (!HoldsTensors<T>::value) {
    return;
  } else if constexpr (std::ranges::input_range<T>) {
    for (const auto& item : output) collect_tensors(item, tensors);
  } else if constexpr (requires { output.has_value(); }) {
    if (output.has_value()) collect_tensors(*output, tensors);
  } else {
    std::apply([&](const auto&... items) { (collect_tensors(items, tensors), ...); }, output);
  }
}

}  // namespace lockstep
