#include "lockstep/snapshot/checkpoint.h"

#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/checkpoint/stored_tensors.h"
#include "lockstep/snapshot/checkpoint/strided_reader.h"
#include "lockstep/snapshot/safetensors.h"
#include "lockstep/snapshot/sharded/snapshot_manifest.h"

namespace lockstep {
namespace {

constexpr const char* kSingleFile = "model.safetensors";

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

StoredTensors open_folder(const std::filesystem::path& path, CheckpointPart part) {
  if (is_there(path / kManifestName)) return open_sharded_snapshot(path, part);
  if (is_there(path / kDistributedMetadataName)) return open_distributed(path, part);
  if (const auto index = find_safetensors_index(path)) return open_sharded_safetensors(*index);
  if (is_there(path / kSingleFile)) return open_safetensors(path / kSingleFile);
  throw UsageError(concat("read ", path.string(),
                          ": it has no manifest.json, .metadata, *.safetensors.index.json or "
                          "model.safetensors; name a file, or another folder"));
}

StoredTensors open_checkpoint(const std::filesystem::path& path, CheckpointPart part) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return open_folder(path, part);
  if (path.native().ends_with(".safetensors.index.json")) return open_sharded_safetensors(path);
  return is_safetensors(path) ? open_safetensors(path) : open_torch_save(path, part);
}

/// Reads what a piece has of `box` into its place in `target`, which is of that box.
void read_piece(const StoredTensor& tensor, const StoredPiece& stored, const CheckpointFiles& files,
                const TensorBox& box, const at::Tensor& target) {
  const auto both = intersection(stored.box, box);
  if (!both) return;
  const ReadableFile file = files.open(stored.file);
  const StoredPiece piece = locate_piece(tensor, stored, file);
  StridedBytes source{
      .offset_bytes = piece.offset_bytes, .sizes = both->sizes, .strides = *piece.strides};
  at::Tensor place = target;
  std::uint64_t skipped = 0;
  for (std::size_t i = 0; i < both->begin.size(); ++i) {
    skipped +=
        static_cast<std::uint64_t>((both->begin[i] - piece.box.begin[i]) * source.strides[i]);
    place =
        place.narrow(static_cast<std::int64_t>(i), both->begin[i] - box.begin[i], both->sizes[i]);
  }
  source.offset_bytes += skipped * target.element_size();
  const bool is_checked =
      piece.crc32 && *both == piece.box && is_one_run(source.sizes, source.strides);
  std::uint32_t crc32 = 0;
  read_strided(file, source, place, is_checked ? &crc32 : nullptr);
  if (is_checked && crc32 != *piece.crc32) {
    refuse_piece(file, tensor, piece, "does not have the CRC that the archive states");
  }
}

/// Dtype, file, offset, shape and strides: equal for tensors that are one.
using TensorBytes = std::tuple<c10::ScalarType, std::size_t, std::uint64_t,
                               std::vector<std::int64_t>, std::vector<std::int64_t>>;

/// Nullopt for a tensor that can be tied to none.
std::optional<TensorBytes> bytes_of(const StoredTensor& tensor) {
  if (tensor.pieces.size() != 1 || c10::multiply_integers(tensor.shape) == 0) return std::nullopt;
  const StoredPiece& piece = tensor.pieces[0];
  if (!piece.strides) return std::nullopt;
  return TensorBytes(tensor.dtype, piece.file, piece.offset_bytes, tensor.shape, *piece.strides);
}

}  // namespace

CheckpointReader::CheckpointReader(std::filesystem::path path,
                                   const CheckpointReaderOptions& options)
    : path_(std::move(path)),
      stored_(std::make_shared<const StoredTensors>(open_checkpoint(path_, options.part))) {
  std::map<TensorBytes, std::string> first_names;
  for (const StoredTensor& tensor : stored_->tensors) {
    if (!places_.emplace(tensor.name, tensors_.size()).second) {
      // Keys 0 and "0" of a dict, or "a.b" and "b" in "a", are different in Python.
      throw UsageError(concat("read ", path_.string(), ": two of its tensors are both called '",
                              tensor.name,
                              "' by their keys; rename one in Python, and save again"));
    }
    tensors_.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
    const auto bytes = bytes_of(tensor);
    if (!bytes) continue;
    const auto [first, is_new] = first_names.emplace(*bytes, tensor.name);
    if (!is_new) tensors_.back().tied_to = first->second;
  }
}

CheckpointFormat CheckpointReader::format() const {
  return stored_->format;
}

const std::map<std::string, std::string>& CheckpointReader::metadata() const {
  return stored_->metadata;
}

at::Tensor CheckpointReader::read(const std::string& name) const {
  const auto place = places_.find(name);
  const std::vector<std::int64_t> shape =
      place == places_.end() ? std::vector<std::int64_t>() : tensors_[place->second].shape;
  return read(name, std::vector<std::int64_t>(shape.size(), 0), shape);
}

at::Tensor CheckpointReader::read(const std::string& name, const std::vector<std::int64_t>& begin,
                                  const std::vector<std::int64_t>& sizes) const {
  const auto place = places_.find(name);
  // Before memory is taken for it.
  if (place == places_.end() ||
      !lies_within({.begin = begin, .sizes = sizes}, tensors_[place->second].shape)) {
    throw UsageError(concat("read ", path_.string(), ": ",
                            place == places_.end() ? "no tensor '" : "beyond the shape of tensor '",
                            name, "'; tensors() has names and shapes"));
  }
  const at::Tensor target = at::empty(sizes, tensors_[place->second].dtype);
  read_into(name, begin, target);
  return target;
}

void CheckpointReader::read_into(const std::string& name, const std::vector<std::int64_t>& begin,
                                 const at::Tensor& target) const {
  const auto place = places_.find(name);
  const TensorBox box{.begin = begin, .sizes = target.sizes().vec()};
  if (place == places_.end() || !lies_within(box, tensors_[place->second].shape) ||
      target.scalar_type() != tensors_[place->second].dtype || !target.is_cpu()) {
    throw UsageError(concat("read ", path_.string(), ": '", name, "' at ", box_text(box), " as ",
                            target.dtype().name(), " on ", target.device(),
                            " is not in it; tensors() has names, shapes and dtypes"));
  }
  const StoredTensor& tensor = stored_->tensors[place->second];
  for (const StoredPiece& piece : tensor.pieces) {
    read_piece(tensor, piece, stored_->files, box, target.detach());
  }
}

bool is_checkpoint_folder(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) &&
         (is_there(path / kDistributedMetadataName) || find_safetensors_index(path) ||
          is_there(path / kSingleFile));
}

}  // namespace lockstep
