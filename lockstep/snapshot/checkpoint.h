#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "lockstep/snapshot/state_dict.h"

/// Checkpoints of other programs, and snapshots, read and written in parts: a rank takes the bytes
/// of its shards alone, whatever number of ranks and whatever sharding wrote them.
namespace lockstep {

inline namespace internal {
struct StoredTensors;
}

/// The formats that CheckpointReader reads.
enum class CheckpointFormat {
  kSafetensors,         ///< One file of Hugging Face's safetensors.
  kShardedSafetensors,  ///< A folder: model.safetensors.index.json and the files that it names.
  kDistributed,         ///< A folder of torch.distributed.checkpoint: .metadata and *.distcp.
  kTorchSave,           ///< A file of torch.save, or of save().
  kSnapshot,            ///< save_snapshot()'s.
  kShardedSnapshot,     ///< A folder with manifest.json.
};

/// Which tensors of a checkpoint are read.
enum class CheckpointPart {
  /// The weights: the dict "model" or "state_dict" where there is one, else everything.
  kModel,
  /// Every tensor by its path: "model.0.weight", "optim.state.0.weight.exp_avg".
  kAll,
};

/// A tensor of a checkpoint, without its values.
struct CheckpointTensor {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> shape = {};
};

/// Of CheckpointReader.
struct CheckpointReaderOptions {
  CheckpointPart part = CheckpointPart::kModel;
};

/// Reads tensors, or parts of them, of a file or folder in any of the formats. Opening it reads
/// what describes the tensors; read() then reads the bytes that it is asked for and no others.
/// Executes nothing in the files, and opens none outside of the folder.
/// Threads: any may read.
/// Errors: CorruptFile, also from read() when a whole piece of torch.save does not have its CRC;
/// UsageError for a dtype or format that is not supported; SystemError.
class CheckpointReader {
 public:
  explicit CheckpointReader(std::filesystem::path path,
                            const CheckpointReaderOptions& options = {});

  /// The file or folder.
  const std::filesystem::path& path() const { return path_; }
  /// What it is.
  CheckpointFormat format() const;
  /// In the order of the file.
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  /// The metadata of safetensors.
  const std::map<std::string, std::string>& metadata() const;

  /// The whole tensor, on the CPU. Errors: also UsageError for a name that is not there.
  at::Tensor read(const std::string& name) const;
  /// The elements from `begin` on, `sizes` of them in each dimension: rows 4 to 7 of a matrix of 10
  /// columns are {4, 0}, {4, 10}. Errors: also UsageError for what is not in the tensor.
  at::Tensor read(const std::string& name, const std::vector<std::int64_t>& begin,
                  const std::vector<std::int64_t>& sizes) const;
  /// The same into `target`, of these sizes and the tensor's dtype, on the CPU.
  void read_into(const std::string& name, const std::vector<std::int64_t>& begin,
                 const at::Tensor& target) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const StoredTensors> stored_;
  std::vector<CheckpointTensor> tensors_;
  std::map<std::string, std::size_t> places_;
};

/// Of save_checkpoint() and convert_checkpoint().
struct SaveCheckpointOptions {
  /// kSafetensors, kShardedSafetensors, kDistributed or kTorchSave.
  CheckpointFormat format = CheckpointFormat::kShardedSafetensors;
  /// Files of a folder. Safetensors: at most so many, for a tensor is in one file.
  int shards = 1;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};  ///< of safetensors
  bool replace = false;  ///< what is at the path; otherwise that is an error
  /// Called often, with the tensors' bytes.
  std::function<void(std::uint64_t written, std::uint64_t total)> progress = {};
};

/// Writes a file or folder whole or not at all. Formats without a checksum get a file beside theirs
/// that has it: checksums.xxh3 in a folder, else <name>.xxh3; `xxh128sum -c` reads it.
/// Errors: UsageError for a tensor that the format cannot hold, and where something is at the path;
/// SystemError (disk full, no permission). The path then holds what it held before.
void save_checkpoint(const std::filesystem::path& path, const TensorDict& tensors,
                     const SaveCheckpointOptions& options = {});

/// The same of tensors on disk. Takes the memory of a block of rows, 64 MiB or one row where that
/// is more; kTorchSave that of the largest tensor. Errors: also those of the reader.
void convert_checkpoint(const CheckpointReader& source, const std::filesystem::path& target,
                        const SaveCheckpointOptions& options = {});

/// Whether the path is a folder of sharded safetensors, or of torch.distributed.checkpoint.
bool is_checkpoint_folder(const std::filesystem::path& path);

}  // namespace lockstep
