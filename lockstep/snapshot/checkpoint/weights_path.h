#pragma once

#include <span>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

/// Where a checkpoint of another program has its weights, as far as the paths of its tensors say.
namespace lockstep::inline internal {

/// Keys of nested dicts.
using KeyPath = std::vector<std::string>;

/// Whether `path` leads to something inside of the dict at `dict`.
bool is_below(std::span<const std::string> path, std::span<const std::string> dict);

/// The path of the dict of the weights, of the paths of all tensors: "model" if there is such a
/// dict, then "state_dict" in it; or these in the only training state at the top, as in
/// {"app": {"model": …, "optim": …}}: the dict of all tensors, or one with an optimizer's. Empty:
/// all tensors are weights.
KeyPath weights_path(std::span<const KeyPath> tensors);

/// The dict at weights_path() in what torch.save wrote; where that path is empty, the empty dict of
/// a model without tensors, else `tree` itself.
c10::IValue weights_value(const c10::IValue& tree);

/// The name of the tensor at `path` in the state dict at `dict`, below which it is.
std::string name_below(const KeyPath& path, const KeyPath& dict);

}  // namespace lockstep::inline internal
