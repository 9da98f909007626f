#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "lockstep/base/error.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

inline namespace internal {
class ReplicaThreads;
}

/// Options of DataParallel. Names and defaults are those of torch.nn.DataParallel.
struct DataParallelOptions {
  /// One replica on each; the CPU may occur several times: {at::kCPU, at::kCPU}. Empty: all CUDA
  /// devices for a module on a CUDA device; else one CPU replica per thread of an operator
  /// (at::get_num_threads).
  std::vector<c10::Device> device_ids = {};
  /// Device of the gathered outputs. Unset: the first of device_ids.
  std::optional<c10::Device> output_device = std::nullopt;
  /// Dimension in which batches are split and outputs concatenated.
  std::int64_t dim = 0;
};

/// forward() failed in a replica. what() has its number, its device and its error, which is nested
/// (std::rethrow_if_nested). If several fail: the first of them.
class ReplicaFailed : public Error {
 public:
  ReplicaFailed(const std::string& message, int replica) : Error(message), replica_(replica) {}
  const char* name() const noexcept override { return "ReplicaFailed"; }
  /// Number of the replica, from 0.
  int replica() const noexcept { return replica_; }

 private:
  int replica_;
};

inline namespace internal {

/// Splits the tensors of one call into the same number of chunks.
class InputScatter {
 public:
  InputScatter(std::vector<c10::Device> devices, std::int64_t dim)
      : devices_(std::move(devices)), dim_(dim) {}

  /// Adds a tensor of the arguments.
  /// Errors: UsageError if it gives another number of chunks than the tensors before, or has no
  /// dimension `dim`.
  void add(const at::Tensor& input);

  /// Number of chunks, at most the number of devices: as many replicas run.
  int replicas() const { return chunks_.value_or(1); }

  /// The chunk of `input` for a replica, on the replica's device; the whole tensor if it has no
  /// dimensions.
  at::Tensor part(int replica, const at::Tensor& input) const;

 private:
  std::vector<c10::Device> devices_;
  std::int64_t dim_;
  std::optional<int> chunks_;
};

/// Creates and runs the replicas of DataParallel; independent of the module's type.
/// Threads: as DataParallel.
/// Errors: as DataParallel.
class ModuleReplicas {
 public:
  ModuleReplicas(std::shared_ptr<torch::nn::Module> module, const DataParallelOptions& options);
  ~ModuleReplicas();
  ModuleReplicas(const ModuleReplicas&) = delete;
  ModuleReplicas& operator=(const ModuleReplicas&) = delete;

  /// An InputScatter for one call.
  InputScatter scatter() const { return InputScatter(devices_, dim_); }

  /// Runs forward(i, replica) for the first `count` replicas, each in its thread.
  void run(int count, const std::function<void(int, torch::nn::Module&)>& forward);

  /// Concatenates the outputs of all replicas on the output device; outputs without dimensions
  /// become a vector.
  at::Tensor gather(const std::vector<at::Tensor>& outputs) const;

 private:
  struct Replica;

  torch::nn::Module& prepare(int index);
  std::unique_ptr<Replica> make_replica(c10::Device device) const;
  void check_device() const;

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<c10::Device> devices_;
  c10::Device output_device_;
  std::int64_t dim_;
  std::vector<std::unique_ptr<Replica>> replicas_;  // null until needed; the first is the module
  std::unique_ptr<ReplicaThreads> threads_;         // null until needed
};

}  // namespace internal

}  // namespace lockstep

/// Arguments and results of a module's forward: tensors, and nested vectors, optionals, pairs and
/// tuples of tensors. Other values are copied.
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

/// Returns the same structure with map(tensor) in place of each tensor.
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

/// Returns one structure from several equal ones, with gather(tensors) for each position.
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
