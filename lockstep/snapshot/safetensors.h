#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "lockstep/snapshot/state_dict.h"

/// Hugging Face's safetensors, which most published weights come in: names, dtypes, shapes and
/// bytes, nothing that could be executed. It has no checksum: a flipped bit in a number is not
/// noticed, unlike in files of save().
namespace lockstep {

struct Safetensors {
  TensorDict tensors = {};  ///< In the order of the file's header, on the CPU.
  std::map<std::string, std::string> metadata = {};
};

/// Writes the tensors' values, each whole and contiguous, whatever memory they share; atomically.
/// Transformers' readers want the metadata {"format", "pt"}.
/// Errors: UsageError naming a tensor that the format cannot hold (sparse, quantized, complex128),
/// and for a name that is twice or no UTF-8; SystemError (disk full, no permission). The path then
/// holds what it held before.
void save_safetensors(const std::filesystem::path& path, const TensorDict& tensors,
                      const std::map<std::string, std::string>& metadata = {});

/// Reads a file of any program. Takes no more memory than the file has bytes.
/// Errors: CorruptFile when it is truncated, its header damaged, or its tensors overlap or leave
/// gaps; UsageError for a dtype that LibTorch does not have; SystemError.
Safetensors read_safetensors(const std::filesystem::path& path);

/// Whether the file is one by its first bytes, or else by its name. Errors: SystemError.
bool is_safetensors(const std::filesystem::path& path);

}  // namespace lockstep
