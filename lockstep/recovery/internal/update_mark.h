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

/// The group of the optimizer's that holds the parameter; none where none does.
std::optional<std::size_t> group_of(torch::optim::Optimizer* optimizer,
                                    const at::Tensor& parameter);

/// A number of a parameter that is another one after each update of it. The optimizer tells of
/// its updates where it counts them, or changes a moment first whose changes LibTorch counts:
/// Lockstep's own, and LibTorch's Adam, AdamW, Adagrad, RMSprop, SGD with momentum. Otherwise it is
/// a hash of the parameter's bytes, as LibTorch does not count what optimizers write to it.
/// `group`: by group_of().
std::uint64_t update_mark(torch::optim::Optimizer* optimizer, std::optional<std::size_t> group,
                          const at::Tensor& parameter);

/// Of the bytes, the same on all ranks whose tensors are.
std::uint64_t hash_of(const at::Tensor& tensor);

/// Of all of them, as the ranks of a group compare them. Of parameters that lie in one copy of
/// these ranks only what this rank's program has changed is looked at.
std::uint64_t hash_of_all(const std::vector<at::Tensor>& parameters);

}  // namespace lockstep::inline internal
