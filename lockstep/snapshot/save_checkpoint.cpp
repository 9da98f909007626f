#include <algorithm>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/checkpoint.h"
#include "lockstep/snapshot/checkpoint/checksum_list.h"
#include "lockstep/snapshot/checkpoint/distributed_metadata.h"
#include "lockstep/snapshot/checkpoint/new_folder.h"
#include "lockstep/snapshot/checkpoint/safetensors_index.h"
#include "lockstep/snapshot/checkpoint/stored_tensors.h"
#include "lockstep/snapshot/checkpoint/tensor_limits.h"
#include "lockstep/snapshot/internal/archive_writer.h"
#include "lockstep/snapshot/internal/file_name.h"
#include "lockstep/snapshot/internal/safetensors_header.h"
#include "lockstep/snapshot/internal/tensor_memory.h"
#include "lockstep/snapshot/pickle/pickle_writer.h"
#include "lockstep/snapshot/pickle/storage_types.h"

namespace lockstep {
namespace {

/// What is in memory at once of a tensor that is written in rows.
constexpr std::int64_t kBlockBytes = std::int64_t{64} << 20;

/// A tensor to write, in memory or on disk.
struct SourceTensor {
  CheckpointTensor tensor;
  /// A part of it, contiguous and on the CPU.
  std::function<at::Tensor(const TensorBox& box)> read;

  std::uint64_t bytes() const {
    return static_cast<std::uint64_t>(c10::multiply_integers(tensor.shape)) *
           c10::elementSize(tensor.dtype);
  }
  std::vector<TensorBox> blocks(const TensorBox& box) const {
    return row_blocks(box, static_cast<std::int64_t>(c10::elementSize(tensor.dtype)), kBlockBytes);
  }
};

/// The tensors, and how far they are written.
class Sources {
 public:
  Sources(std::vector<SourceTensor> tensors, const SaveCheckpointOptions& options)
      : tensors_(std::move(tensors)), progress_(options.progress) {
    std::set<std::string> names;
    for (const SourceTensor& source : tensors_) {
      total_bytes_ += source.bytes();
      if (source.tensor.name.size() > kMaxTensorNameBytes) {
        throw UsageError(concat("save checkpoint: a name has ", source.tensor.name.size(),
                                " bytes, and at most ", kMaxTensorNameBytes,
                                " are supported; rename '", source.tensor.name.substr(0, 40),
                                "…'"));
      }
      if (!names.insert(source.tensor.name).second) {
        throw UsageError(
            concat("save checkpoint: the name '", source.tensor.name, "' is taken; rename one"));
      }
    }
  }

  const std::vector<SourceTensor>& tensors() const { return tensors_; }
  std::uint64_t total_bytes() const { return total_bytes_; }

  /// To be called after each block.
  void add_written(std::uint64_t bytes) const {
    written_bytes_ += bytes;
    if (progress_) progress_(written_bytes_, total_bytes_);
  }

 private:
  std::vector<SourceTensor> tensors_;
  std::function<void(std::uint64_t, std::uint64_t)> progress_;
  std::uint64_t total_bytes_ = 0;
  mutable std::uint64_t written_bytes_ = 0;
};

// Safetensors.

/// `before_commit` is called once all is written, before it takes the path.
FileDigest write_safetensors(const std::filesystem::path& path, const Sources& sources,
                             std::span<const SourceTensor> tensors,
                             const std::map<std::string, std::string>& metadata,
                             const std::function<void()>& before_commit = {}) {
  SafetensorsHeader header{.tensors = {}, .metadata = metadata};
  for (const SourceTensor& source : tensors) {
    if (!is_safetensors_dtype(source.tensor.dtype)) {
      throw UsageError(concat("save safetensors: '", source.tensor.name, "' is of dtype ",
                              dtype_name(source.tensor.dtype),
                              ", which the format does not have; choose another format"));
    }
    header.tensors.push_back(
        {.name = source.tensor.name, .dtype = source.tensor.dtype, .shape = source.tensor.shape});
  }
  place_safetensors(header.tensors);
  const std::string text = safetensors_header_text(header);
  const std::uint64_t text_bytes = text.size();
  std::vector<std::size_t> order(tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, {}, [&](std::size_t i) {
    return std::pair(header.tensors[i].begin_bytes, header.tensors[i].end_bytes);
  });
  HashedFile file(path);
  file.write(&text_bytes, sizeof(text_bytes));
  file.write(text.data(), text.size());
  for (const std::size_t i : order) {
    for (const TensorBox& block : tensors[i].blocks(whole_box(tensors[i].tensor.shape))) {
      const at::Tensor values = tensors[i].read(block);
      if (values.nbytes() > 0) file.write(values.const_data_ptr(), values.nbytes());
      sources.add_written(values.nbytes());
    }
  }
  if (before_commit) before_commit();
  return file.commit();
}

/// Consecutive tensors by file, of about as many bytes each.
std::vector<std::span<const SourceTensor>> plan_files(const Sources& sources, int shards) {
  const std::vector<SourceTensor>& tensors = sources.tensors();
  std::vector<std::span<const SourceTensor>> files;
  const std::uint64_t file_bytes =
      std::max<std::uint64_t>(1, sources.total_bytes() / static_cast<std::uint64_t>(shards) + 1);
  std::uint64_t before = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= tensors.size(); ++i) {
    const bool is_end = i == tensors.size();
    if (is_end ||
        (i > begin && before / file_bytes != (before - tensors[i - 1].bytes()) / file_bytes)) {
      files.emplace_back(tensors.data() + begin, i - begin);
      begin = i;
    }
    if (!is_end) before += tensors[i].bytes();
  }
  return files;
}

std::string safetensors_file_name(std::size_t index, std::size_t count) {
  const auto digits = [](std::size_t number) {
    const std::string text = std::to_string(number);
    return std::string(5 - std::min<std::size_t>(5, text.size()), '0') + text;
  };
  return concat("model-", digits(index + 1), "-of-", digits(count), ".safetensors");
}

void write_sharded_safetensors(const std::filesystem::path& folder, const Sources& sources,
                               const SaveCheckpointOptions& options,
                               std::map<std::string, FileDigest>& digests) {
  const auto files = plan_files(sources, options.shards);
  SafetensorsIndex index{.total_bytes = sources.total_bytes(), .files = {}};
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name = safetensors_file_name(i, files.size());
    digests[name] = write_safetensors(folder / name, sources, files[i], options.metadata);
    for (const SourceTensor& source : files[i]) index.files.emplace_back(source.tensor.name, name);
  }
  HashedFile file(folder / "model.safetensors.index.json");
  const std::string text = safetensors_index_text(index);
  file.write(text.data(), text.size());
  digests["model.safetensors.index.json"] = file.commit();
}

// Archives of torch.save.

void add_text(ArchiveWriter& archive, const char* name, const std::string& text) {
  archive.add(name, text.data(), text.size());
}

void check_torch_dtype(const CheckpointTensor& tensor) {
  if (!dtype_of_name(dtype_name(tensor.dtype))) {
    throw UsageError(concat("save checkpoint: '", tensor.name, "' is of dtype ",
                            c10::toString(tensor.dtype),
                            ", which cannot be stored; convert it to another"));
  }
}

/// A piece of a tensor, as torch.save writes it.
void write_piece(HashedFile& file, const at::Tensor& values) {
  PickleWriter pickle;
  put_tensor(pickle, values.scalar_type(), values.sizes().vec(), "0");
  ArchiveWriter archive([&](const void* data, std::size_t bytes) { file.write(data, bytes); });
  add_text(archive, kPickleRecord, pickle.finish());
  add_text(archive, kByteOrderRecord, "little");
  archive.add(concat(kStoragePrefix, 0), values.const_data_ptr(), values.nbytes());
  archive.finish();
}

void write_distributed(const std::filesystem::path& folder, const Sources& sources, int shards,
                       std::map<std::string, FileDigest>& digests) {
  DistributedMetadata metadata;
  for (const SourceTensor& source : sources.tensors()) {
    check_torch_dtype(source.tensor);
    metadata.tensors.push_back({.name = source.tensor.name,
                                .path = {source.tensor.name},
                                .dtype = source.tensor.dtype,
                                .shape = source.tensor.shape});
  }
  for (int shard = 0; shard < shards; ++shard) {
    const std::string name = concat("__", shard, "_0.distcp");
    HashedFile file(folder / name);
    for (std::size_t i = 0; i < sources.tensors().size(); ++i) {
      const SourceTensor& source = sources.tensors()[i];
      const auto rows = rows_of_part(source.tensor.shape, shards, shard);
      for (const TensorBox& box : rows ? source.blocks(*rows) : std::vector<TensorBox>()) {
        const std::uint64_t begin = file.size_bytes();
        const at::Tensor values = source.read(box);
        write_piece(file, values);
        metadata.tensors[i].pieces.push_back({.box = box,
                                              .file = metadata.files.size(),
                                              .offset_bytes = begin,
                                              .size_bytes = file.size_bytes() - begin});
        sources.add_written(values.nbytes());
      }
    }
    if (file.size_bytes() == 0) continue;
    metadata.files.push_back(name);
    digests[name] = file.commit();
  }
  HashedFile file(folder / kDistributedMetadataName);
  const std::string text = distributed_metadata_text(metadata);
  file.write(text.data(), text.size());
  digests[kDistributedMetadataName] = file.commit();
}

/// Its own checksum is in the archive.
void write_torch_save(const std::filesystem::path& path, const Sources& sources) {
  PickleWriter pickle;
  pickle.dict();
  for (std::size_t i = 0; i < sources.tensors().size(); ++i) {
    const CheckpointTensor& tensor = sources.tensors()[i].tensor;
    check_torch_dtype(tensor);
    pickle.string(tensor.name);
    put_tensor(pickle, tensor.dtype, tensor.shape, std::to_string(i));
  }
  AtomicFile file(path);
  ChecksumWriter output(file);
  {
    ArchiveWriter archive([&](const void* data, std::size_t bytes) { output.write(data, bytes); });
    add_text(archive, kPickleRecord, pickle.end_dict().finish());
    add_text(archive, kByteOrderRecord, "little");
    for (std::size_t i = 0; i < sources.tensors().size(); ++i) {
      const at::Tensor values =
          sources.tensors()[i].read(whole_box(sources.tensors()[i].tensor.shape));
      archive.add(concat(kStoragePrefix, i), values.const_data_ptr(), values.nbytes());
      sources.add_written(values.nbytes());
    }
    archive.finish();
  }
  output.finish();
  file.commit();
}

// Paths.

void check_target(const std::filesystem::path& path, const SaveCheckpointOptions& options) {
  std::error_code error;
  if (options.shards < 1) {
    throw UsageError(concat("save checkpoint: ", options.shards, " shards; give at least 1"));
  }
  const bool is_folder = options.format == CheckpointFormat::kShardedSafetensors ||
                         options.format == CheckpointFormat::kDistributed;
  if (!is_folder && options.shards > 1) {
    throw UsageError(concat("save checkpoint: ", path.string(),
                            " is one file; give one shard, or the format of a folder"));
  }
  for (const auto& [name, text] : options.extra_files) {
    if (!is_folder || !is_file_name(name)) {
      throw UsageError(concat("save checkpoint: ", path.string(), " cannot have a file '", name,
                              "'; give a name without '/', and the format of a folder"));
    }
  }
  if (!std::filesystem::exists(path, error)) return;
  if (!options.replace) {
    throw UsageError(
        concat("save checkpoint: ", path.string(), " exists; choose another path, or replace it"));
  }
  if (std::filesystem::is_directory(path, error) != is_folder) {
    throw UsageError(concat("save checkpoint: ", path.string(), " is ",
                            is_folder ? "a file" : "a folder", ", and would become ",
                            is_folder ? "a folder" : "a file", "; choose another path"));
  }
}

/// Beside the checkpoint's own files.
void write_extra_file(const std::filesystem::path& path, const std::string& text) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    throw UsageError(concat("save checkpoint: ", path.filename().string(),
                            " is a file of the checkpoint itself; name the extra file otherwise"));
  }
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

void save_sources(const std::filesystem::path& path, std::vector<SourceTensor> tensors,
                  const SaveCheckpointOptions& options) {
  check_target(path, options);
  if (options.format == CheckpointFormat::kSafetensors ||
      options.format == CheckpointFormat::kShardedSafetensors) {
    std::erase_if(tensors, [](const auto& source) { return !source.tensor.tied_to.empty(); });
  }
  const Sources sources(std::move(tensors), options);
  std::map<std::string, FileDigest> digests;
  if (options.format == CheckpointFormat::kTorchSave) {
    write_torch_save(path, sources);
  } else if (options.format == CheckpointFormat::kSafetensors) {
    // A checksum of what was there must not be taken for this file's.
    const auto remove_old_list = [&] {
      std::error_code error;
      std::filesystem::remove(checksum_list_path(path), error);
    };
    digests[path.filename()] =
        write_safetensors(path, sources, sources.tensors(), options.metadata, remove_old_list);
    write_checksum_list(checksum_list_path(path), digests);
  } else if (options.format == CheckpointFormat::kShardedSafetensors ||
             options.format == CheckpointFormat::kDistributed) {
    NewFolder folder(path);
    if (options.format == CheckpointFormat::kDistributed) {
      write_distributed(folder.path(), sources, options.shards, digests);
    } else {
      write_sharded_safetensors(folder.path(), sources, options, digests);
    }
    write_checksum_list(checksum_list_path(folder.path()), digests);
    for (const auto& [name, text] : options.extra_files) {
      write_extra_file(folder.path() / name, text);
    }
    folder.commit(options.replace);
  } else {
    throw UsageError(
        "save checkpoint: snapshots are written by SnapshotDirectory; choose another format");
  }
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const TensorDict& tensors,
                     const SaveCheckpointOptions& options) {
  std::vector<SourceTensor> sources;
  std::map<TensorMemory, std::string> first_names;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_quantized()) {
      throw UsageError(
          concat("save checkpoint: '", name, "' is no dense tensor; convert it, or leave it out"));
    }
    const at::Tensor values = tensor.detach();
    sources.push_back(
        {.tensor = {.name = name, .dtype = tensor.scalar_type(), .shape = tensor.sizes().vec()},
         .read = [values](const TensorBox& box) {
           at::Tensor part = values;
           if (!box.begin.empty()) part = part.narrow(0, box.begin[0], box.sizes[0]);
           // Alone in its storage, which is what an archive has.
           return part.resolve_conj().resolve_neg().cpu().contiguous();
         }});
    const auto memory = memory_of(tensor);
    if (!memory) continue;
    const auto [first, is_new] = first_names.emplace(*memory, name);
    if (!is_new) sources.back().tensor.tied_to = first->second;
  }
  save_sources(path, std::move(sources), options);
}

void convert_checkpoint(const CheckpointReader& source, const std::filesystem::path& target,
                        const SaveCheckpointOptions& options) {
  std::vector<SourceTensor> sources;
  for (const CheckpointTensor& tensor : source.tensors()) {
    sources.push_back({.tensor = tensor, .read = [&](const TensorBox& box) {
                         return source.read(tensor.name, box.begin, box.sizes);
                       }});
  }
  save_sources(target, std::move(sources), options);
}

}  // namespace lockstep
