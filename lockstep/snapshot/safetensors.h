#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "lockstep/snapshot/state_dict.h"

/// Hugging Face's safetensors, the format of most published weights: names, dtypes, shapes and
/// bytes, nothing executable. It has no checksum: unlike in files of save(), a flipped bit in a
/// value is not detected.
namespace lockstep {

/// Content of a safetensors file.
struct Safetensors {
  TensorDict tensors = {};  ///< in the order of the file's header, on the CPU
  std::map<std::string, std::string> metadata = {};
};

/// Writes the tensors, each contiguous, whatever memory they share; atomically. Transformers needs
/// the metadata {"format", "pt"}.
/// Errors: UsageError that names a tensor that the format cannot hold (sparse, quantized,
/// complex128), and for a name that is a duplicate or not UTF-8; SystemError (disk full, no
/// permission). The path then holds what it held before.
void save_safetensors(const std::filesystem::path& path, const TensorDict& tensors,
                      const std::map<std::string, std::string>& metadata = {});

/// Reads a file of any program. Needs no more memory than the file's size.
/// Errors: CorruptFile if it is truncated, its header is damaged, or its tensors overlap or leave
/// gaps; UsageError for a dtype that LibTorch does not have; SystemError.
Safetensors read_safetensors(const std::filesystem::path& path);

/// Whether a file is safetensors, by its first bytes, or else by its name.
/// Errors: SystemError.
bool is_safetensors(const std::filesystem::path& path);

}  // namespace lockstep
