#pragma once

#include <filesystem>
#include <string>

#include "lockstep/snapshot/tensor_dict.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// The module's parameters and buffers, by Python's names. The tensors share the module's memory.
TensorDict state_dict(const torch::nn::Module& module);

/// Copies the values into the module's parameters and buffers, on whatever device they are.
/// All or nothing. `source` names where `values` are from, in messages.
/// Errors: UsageError listing where names, shapes or dtypes differ.
void load_state_dict(torch::nn::Module& module, const TensorDict& values,
                     const std::string& source = "the state dict");

/// Throws what load_state_dict would, and changes nothing.
void check_state_dict(const torch::nn::Module& module, const TensorDict& values,
                      const std::string& source = "the state dict");

/// The tensors of a file of Python's torch.save(module.state_dict(), path), or of
/// torch.save({"model": module.state_dict(), …}, path) or {"state_dict": …}, or of a snapshot.
/// Errors: CorruptFile when it is damaged; UsageError when it holds something else; SystemError.
TensorDict read_state_dict(const std::filesystem::path& path);

}  // namespace lockstep
