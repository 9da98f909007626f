#include <map>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/checkpoint/safetensors_index.h"
#include "lockstep/snapshot/checkpoint/stored_tensors.h"
#include "lockstep/snapshot/internal/safetensors_layout.h"

namespace lockstep::inline internal {
namespace {

constexpr const char* kUsualIndex = "model.safetensors.index.json";
constexpr std::string_view kIndexEnd = ".safetensors.index.json";
/// A hundred bytes a tensor: a million tensors stay below it.
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{128} << 20;

std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

StoredTensor stored_tensor(const SafetensorsEntry& entry, std::uint64_t data_begin,
                           std::size_t file) {
  return {.name = entry.name,
          .dtype = entry.dtype,
          .shape = entry.shape,
          .pieces = {{.box = whole_box(entry.shape),
                      .file = file,
                      .offset_bytes = data_begin + entry.begin_bytes,
                      .size_bytes = entry.end_bytes - entry.begin_bytes,
                      .strides = contiguous_strides(entry.shape)}}};
}

}  // namespace

StoredTensors open_safetensors(const std::filesystem::path& path) {
  StoredTensors stored{.format = CheckpointFormat::kSafetensors};
  SafetensorsLayout layout = read_safetensors_layout(stored.files.add(path));
  for (const SafetensorsEntry& entry : layout.header.tensors) {
    stored.tensors.push_back(stored_tensor(entry, layout.data_begin, 0));
  }
  stored.metadata = std::move(layout.header.metadata);
  return stored;
}

StoredTensors open_sharded_safetensors(const std::filesystem::path& index_path) {
  const ReadableFile index_file(index_path);
  const std::string source = index_path.string();
  if (index_file.size_bytes() > kMaxIndexBytes) {
    throw CorruptFile(concat("read ", source, ": it has ", index_file.size_bytes(),
                             " bytes, more than any index; take another copy"));
  }
  const SafetensorsIndex index = parse_safetensors_index(index_file.text(), source);
  StoredTensors stored{.format = CheckpointFormat::kShardedSafetensors};
  // By file name, the tensors that it has.
  std::map<std::string, std::map<std::string, StoredTensor>> files;
  for (const auto& [name, file_name] : index.files) {
    auto [file, is_new] = files.try_emplace(file_name);
    if (is_new) {
      SafetensorsLayout layout =
          read_safetensors_layout(stored.files.add(index_path.parent_path() / file_name));
      for (const SafetensorsEntry& entry : layout.header.tensors) {
        file->second.emplace(entry.name,
                             stored_tensor(entry, layout.data_begin, stored.files.size() - 1));
      }
      stored.metadata.merge(layout.header.metadata);
    }
    auto tensor = file->second.find(name);
    if (tensor == file->second.end()) {
      throw CorruptFile(concat("read ", source, ": tensor '", name, "' is not in ", file_name,
                               "; it is of another model, or damaged: take another copy"));
    }
    stored.tensors.push_back(std::move(tensor->second));
  }
  return stored;
}

std::optional<std::filesystem::path> find_safetensors_index(const std::filesystem::path& folder) {
  std::error_code error;
  if (std::filesystem::exists(folder / kUsualIndex, error)) return folder / kUsualIndex;
  std::vector<std::filesystem::path> found;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().native().ends_with(kIndexEnd)) found.push_back(entry->path());
  }
  if (found.empty()) return std::nullopt;
  if (found.size() > 1) {
    throw UsageError(concat("read ", folder.string(), ": it has ", found.size(),
                            " indexes of safetensors; name one, as ", found.front().string()));
  }
  return found.front();
}

}  // namespace lockstep::inline internal
