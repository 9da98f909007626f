#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline internal {

/// The optimizer's parameter group with this parameter; empty: none.
std::optional<std::size_t> group_of(torch::optim::Optimizer* optimizer,
                                    const at::Tensor& parameter);

/// A number of a parameter that changes with each update. It comes from the optimizer if that
/// counts its updates, or changes a moment first whose changes LibTorch counts: Lockstep's
/// optimizers, and LibTorch's Adam, AdamW, Adagrad, RMSprop, SGD with momentum. Else it is a hash
/// of the parameter's bytes, because LibTorch's version counter ignores an optimizer's writes to
/// it. `group`: from group_of().
std::uint64_t update_mark(torch::optim::Optimizer* optimizer, std::optional<std::size_t> group,
                          const at::Tensor& parameter);

/// Hash of the bytes; equal on ranks with equal tensors.
std::uint64_t hash_of(const at::Tensor& tensor);

/// Hash of all parameters, for comparing the ranks of a group. Of parameters in one copy of these
/// ranks it includes only what this rank's program has changed.
std::uint64_t hash_of_all(const std::vector<at::Tensor>& parameters);

}  // namespace lockstep::inline internal
