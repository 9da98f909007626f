#pragma once

#include <filesystem>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Named tensors in the order of their module, as Python's state_dict: "0.weight", "0.bias", ….
using TensorDict = std::vector<std::pair<std::string, at::Tensor>>;

/// The module's parameters and buffers, by Python's names. The tensors share the module's memory.
TensorDict state_dict(const torch::nn::Module& module);

struct LoadStateDictOptions {
  /// Every tensor of the module must be among the values, alike, and no other. Otherwise what fits
  /// is copied and the rest is told.
  bool strict = true;
  /// Where the values are from, in messages.
  std::string source = "the state dict";
};

/// What was not copied, by name and in order: PyTorch's missing and unexpected keys, and tensors
/// that differ in shape or dtype, for which PyTorch's load_state_dict fails in any case.
struct IncompatibleKeys {
  std::vector<std::string> missing = {};     ///< Of the module, and not among the values.
  std::vector<std::string> unexpected = {};  ///< Among the values, and not of the module.
  std::vector<std::string> mismatched = {};  ///< In both, of another shape or dtype.

  bool empty() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
};

/// Copies the values into the module's parameters and buffers, on whatever device they are. All or
/// nothing, unless `strict` is off: then what fits, and the rest is returned. Names that all begin
/// with "module.", as those of Python's DistributedDataParallel, are taken without it unless the
/// module's own do.
/// Errors: UsageError listing where names, shapes or dtypes differ, where strict.
IncompatibleKeys load_state_dict(torch::nn::Module& module, const TensorDict& values,
                                 const LoadStateDictOptions& options = {});

/// The same, strict. A template, so that options in braces are never taken for a string.
template <class Text>
requires std::is_convertible_v<const Text&, std::string>
void load_state_dict(torch::nn::Module& module, const TensorDict& values, const Text& source) {
  load_state_dict(module, values, LoadStateDictOptions{.source = source});
}

/// Throws what load_state_dict would, and changes nothing.
void check_state_dict(const torch::nn::Module& module, const TensorDict& values,
                      const std::string& source = "the state dict");

/// The same tensors by shorter names where all begin with `prefix`, otherwise as they are.
TensorDict without_prefix(TensorDict values, const std::string& prefix = "module.");

/// The tensors of a file of Python's torch.save(module.state_dict(), path), or of
/// torch.save({"model": module.state_dict(), …}, path) or {"state_dict": …}, or of a snapshot,
/// or of a safetensors file, or of a folder of sharded safetensors or torch.distributed.checkpoint.
/// CheckpointReader reads parts of them.
/// float8 and unsigned dtypes are read too.
/// Errors: CorruptFile when it is damaged; UsageError when it holds something else, or has the
/// format that torch.save had before PyTorch 1.6; SystemError.
TensorDict read_state_dict(const std::filesystem::path& path);

}  // namespace lockstep
