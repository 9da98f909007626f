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

/// Checkpoints of other programs, and snapshots, read and written in parts: a rank reads only the
/// bytes of its shards, whatever number of ranks and whatever sharding wrote them.
namespace lockstep {

inline namespace internal {
struct StoredTensors;
}

/// Formats that CheckpointReader reads.
enum class CheckpointFormat {
  kSafetensors,         ///< One file of Hugging Face's safetensors.
  kShardedSafetensors,  ///< A directory: model.safetensors.index.json and the files that it names.
  kDistributed,         ///< A directory of torch.distributed.checkpoint: .metadata and *.distcp.
  kTorchSave,           ///< A file of torch.save, or of save().
  kSnapshot,            ///< A file of save_snapshot().
  kShardedSnapshot,     ///< A directory with manifest.json.
};

/// Which tensors of a checkpoint to read.
enum class CheckpointPart {
  /// The weights: the dict "model" or "state_dict" if there is one, also in the only training
  /// state, as in {"app": {"model": …, "optim": …}}; else every tensor.
  kModel,
  /// Every tensor, named by its path: "model.0.weight", "optim.state.0.weight.exp_avg".
  kAll,
};

/// Name, dtype and shape of a tensor in a checkpoint, without its values.
struct CheckpointTensor {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> shape = {};
  /// An earlier tensor with the very bytes of this one, as torch.save and snapshots have tied
  /// weights; empty: none.
  std::string tied_to = {};
};

/// Options of CheckpointReader.
struct CheckpointReaderOptions {
  CheckpointPart part = CheckpointPart::kModel;
};

/// Reads whole tensors, or parts of them, from a file or directory in any of the formats. The
/// constructor reads only the metadata; read() reads only the bytes that it returns. Executes
/// nothing in the files, and opens no file outside of the directory.
/// Threads: any number may read.
/// Lifetime: at most 64 files are open at a time; a directory of more must stay as it is.
/// Errors: CorruptFile, also from read() if a complete piece of torch.save fails its CRC, or if a
/// file was replaced since; UsageError for a dtype or format that is not supported, and for two
/// tensors of one name; SystemError.
class CheckpointReader {
 public:
  explicit CheckpointReader(std::filesystem::path path,
                            const CheckpointReaderOptions& options = {});

  /// The file or directory.
  const std::filesystem::path& path() const { return path_; }
  /// Its format.
  CheckpointFormat format() const;
  /// All tensors, in the order of the file.
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  /// The metadata of safetensors; empty for other formats.
  const std::map<std::string, std::string>& metadata() const;

  /// Reads a whole tensor to the CPU.
  /// Errors: as the class; UsageError for an unknown name.
  at::Tensor read(const std::string& name) const;
  /// Reads a rectangular part: `sizes` elements per dimension, from index `begin` on. Rows 4 to 7
  /// of a matrix of 10 columns are {4, 0}, {4, 10}.
  /// Errors: as the class; UsageError for a part that is not inside the tensor.
  at::Tensor read(const std::string& name, const std::vector<std::int64_t>& begin,
                  const std::vector<std::int64_t>& sizes) const;
  /// Reads the part with the sizes of `target` into it. `target` is on the CPU and has the tensor's
  /// dtype.
  void read_into(const std::string& name, const std::vector<std::int64_t>& begin,
                 const at::Tensor& target) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const StoredTensors> stored_;
  std::vector<CheckpointTensor> tensors_;
  std::map<std::string, std::size_t> places_;
};

/// Options of save_checkpoint() and convert_checkpoint().
struct SaveCheckpointOptions {
  /// kSafetensors, kShardedSafetensors, kDistributed or kTorchSave.
  CheckpointFormat format = CheckpointFormat::kShardedSafetensors;
  /// Number of files in a directory. Safetensors may get fewer, since a tensor is in one file.
  int shards = 1;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};  ///< of safetensors
  /// Further files of a directory by name, with their text: config.json. They have no checksum.
  std::map<std::string, std::string> extra_files = {};
  bool replace = false;  ///< overwrite what is at the path; false: that is an error
  /// Progress callback, called often, in bytes of tensors.
  std::function<void(std::uint64_t written, std::uint64_t total)> progress = {};
};

/// Writes a file or directory; it is complete or absent. Of tied tensors, which are one in memory,
/// safetensors get the first alone, as Hugging Face writes them; load_state_dict() ties them.
/// Formats without a checksum get a file with one beside them: checksums.xxh3 in a directory, else
/// `<name>.xxh3`; `xxh128sum -c` verifies it.
/// Errors: UsageError for a tensor that the format cannot hold, and if the path exists; SystemError
/// (disk full, no permission). The path then holds what it held before.
void save_checkpoint(const std::filesystem::path& path, const TensorDict& tensors,
                     const SaveCheckpointOptions& options = {});

/// Writes the tensors of a checkpoint in another format. Needs memory for a block of rows: 64 MiB,
/// or one row if that is more; kTorchSave needs memory for the largest tensor.
/// Errors: as save_checkpoint and CheckpointReader.
void convert_checkpoint(const CheckpointReader& source, const std::filesystem::path& target,
                        const SaveCheckpointOptions& options = {});

/// Whether the path is a directory of sharded safetensors or of torch.distributed.checkpoint.
bool is_checkpoint_folder(const std::filesystem::path& path);

}  // namespace lockstep
