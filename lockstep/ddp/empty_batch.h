#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace lockstep {

/// What a batch without samples is: batches whose samples lie along dimension 0 are tensors,
/// torch::data::Examples, and pairs, tuples and arrays of such; a vector is a list of samples.
template <class Batch>
constexpr bool knows_samples_of() {
  if constexpr (std::is_base_of_v<at::Tensor, Batch>) {
    return true;
  } else if constexpr (requires(Batch & batch) {
                         batch.data;
                         batch.target;
                       }) {
    return knows_samples_of<decltype(Batch::data)>() && knows_samples_of<decltype(Batch::target)>();
  } else if constexpr (requires(Batch & batch) { batch.data; }) {
    return knows_samples_of<decltype(Batch::data)>();
  } else if constexpr (requires { std::tuple_size<Batch>::value; }) {
    return []<std::size_t... i>(std::index_sequence<i...>) {
      return (knows_samples_of<std::tuple_element_t<i, Batch>>() && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<Batch>>());
  } else {
    return requires(Batch & batch) {
      batch.clear();
    };
  }
}

/// Calls action(tensor) for each tensor of the batch, and clear(vector) for each list of samples.
/// For types of which knows_samples_of is true.
template <class Batch, class Action, class Clear>
void for_each_batch_tensor(Batch& batch, const Action& action, const Clear& clear) {
  const auto visit = [&](auto& part) { for_each_batch_tensor(part, action, clear); };
  using Plain = std::remove_const_t<Batch>;
  if constexpr (std::is_base_of_v<at::Tensor, Plain>) {
    action(batch);
  } else if constexpr (requires { batch.data; }) {
    visit(batch.data);
    if constexpr (requires { batch.target; }) visit(batch.target);
  } else if constexpr (requires { std::tuple_size<Plain>::value; }) {
    std::apply([&](auto&... parts) { (visit(parts), ...); }, batch);
  } else {
    clear(batch);
  }
}

/// Of one of a batch's tensors.
struct BatchTensorShape {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes = {};
};

template <class Batch>
std::vector<BatchTensorShape> shapes_of_batch(const Batch& batch) {
  std::vector<BatchTensorShape> shapes;
  for_each_batch_tensor(
      batch,
      [&](const at::Tensor& tensor) {
        shapes.push_back({tensor.scalar_type(), tensor.sizes().vec()});
      },
      [](const auto&) {});
  return shapes;
}

/// A batch without samples, of tensors like those with these shapes.
template <class Batch>
Batch empty_batch(const std::vector<BatchTensorShape>& shapes) {
  Batch batch{};
  std::size_t next = 0;
  for_each_batch_tensor(
      batch,
      [&](at::Tensor& tensor) {
        auto sizes = shapes.at(next).sizes;
        if (!sizes.empty()) sizes[0] = 0;
        tensor = at::empty(sizes, shapes.at(next++).dtype);
      },
      [](auto& samples) { samples.clear(); });
  return batch;
}

}  // namespace lockstep
