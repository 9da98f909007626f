#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Named tensors in the order of their module, as Python's state_dict: "0.weight", "0.bias", ….
using TensorDict = std::vector<std::pair<std::string, at::Tensor>>;

/// The module's parameters and buffers, by Python's names. The tensors share the module's memory.
TensorDict state_dict(const torch::nn::Module& module);

/// Options of load_state_dict().
struct LoadStateDictOptions {
  /// Names, shapes and dtypes must all match. False: copies what matches, and returns the rest.
  bool strict = true;
  /// Where the values are from, for error messages.
  std::string source = "the state dict";
};

/// Tensors that load_state_dict() did not copy, in order: PyTorch's missing and unexpected keys,
/// and shape or dtype mismatches, for which PyTorch's load_state_dict always fails.
struct IncompatibleKeys {
  std::vector<std::string> missing = {};     ///< in the module, not among the values
  std::vector<std::string> unexpected = {};  ///< among the values, not in the module
  std::vector<std::string> mismatched = {};  ///< in both, with another shape or dtype

  /// Whether everything was copied.
  bool empty() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
};

/// Copies the values into the module's parameters and buffers, on any device. All or nothing,
/// unless strict is false. Tied tensors, which are one in memory, need a value for one name. If all
/// names begin with "module.", as those of Python's DistributedDataParallel, and the module's do
/// not, the prefix is removed.
/// Errors: UsageError, if strict, that lists differing names, shapes and dtypes.
IncompatibleKeys load_state_dict(torch::nn::Module& module, const TensorDict& values,
                                 const LoadStateDictOptions& options = {});

/// The same, strict. A template, so that options in braces never convert to a string.
template <class Text>
requires std::is_convertible_v<const Text&, std::string>
void load_state_dict(torch::nn::Module& module, const TensorDict& values, const Text& source) {
  load_state_dict(module, values, LoadStateDictOptions{.source = source});
}

/// Throws what load_state_dict() would throw; changes nothing.
void check_state_dict(const torch::nn::Module& module, const TensorDict& values,
                      const std::string& source = "the state dict");

/// Removes `prefix` from all names if all have it; otherwise returns them unchanged.
TensorDict without_prefix(TensorDict values, const std::string& prefix = "module.");

/// Reads the tensors of a file or directory to the CPU:
///
/// - torch.save(module.state_dict(), path), or of a dict that holds it as "model" or "state_dict",
///   also in its only training state, as {"app": {"model": …, "optim": …}}
/// - a snapshot
/// - a safetensors file, a directory of sharded safetensors or of torch.distributed.checkpoint
///
/// Also reads float8 and unsigned dtypes. CheckpointReader reads parts of tensors.
/// Errors: CorruptFile for a damaged file; UsageError for other content, and for the format of
/// torch.save before PyTorch 1.6; SystemError.
TensorDict read_state_dict(const std::filesystem::path& path);

/// A second interface of an optimizer whose state is sharded over ranks. Snapshots store its state
/// unsharded, and load it shard by shard.
class ShardedState {
 public:
  virtual ~ShardedState() = default;

  /// Whether this rank holds the state of a parameter of the optimizer.
  virtual bool keeps_state_of(const at::Tensor& parameter) const = 0;

  /// The state dict of the unsharded optimizer, in CPU tensors of its own: on rank `target`, or on
  /// every rank if that is empty; None elsewhere. Collective.
  /// Errors: UsageError for optimizers that snapshots do not know; else as Work::wait.
  virtual c10::IValue consolidated_state_dict(std::optional<int> target) const = 0;
};

}  // namespace lockstep
