#include "lockstep/snapshot/checkpoint/distributed_metadata.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/internal/file_name.h"
#include "lockstep/snapshot/pickle/pickle_nodes.h"
#include "lockstep/snapshot/pickle/storage_types.h"
#include "lockstep/snapshot/pickle/unpickler.h"

namespace lockstep::inline internal {
namespace {

constexpr std::string_view kTorch = "torch.";
/// What values and their places take beside their text, in C++.
constexpr std::uint64_t kTensorEntryBytes = 256;
constexpr std::uint64_t kPieceBytes = 160;
constexpr std::uint64_t kNumberBytes = 32;

/// Without the module, which has moved between versions of PyTorch.
std::string_view class_name(std::string_view full) {
  return full.substr(full.rfind('.') + 1);
}

bool is_class(std::string_view full) {
  const std::string_view name = class_name(full);
  if (full.starts_with("torch.distributed.")) {
    return name == "Metadata" || name == "TensorStorageMetadata" || name == "TensorProperties" ||
           name == "ChunkStorageMetadata" || name == "BytesStorageMetadata" ||
           name == "MetadataIndex" || name == "StorageMeta" || name == "_StorageInfo" ||
           name == "_MEM_FORMAT_ENCODING" || name == "MEM_FORMAT_ENCODING";
  }
  return full == "torch.Size" || full == "torch.serialization._get_layout" ||
         full == "pathlib.PosixPath" || full == "pathlib._local.PosixPath" ||
         full == "pathlib.WindowsPath" || full == "pathlib._local.WindowsPath";
}

bool is_value(std::string_view full) {
  return full == "collections.OrderedDict" ||
         (full.starts_with(kTorch) && dtype_of_name(full.substr(kTorch.size())));
}

/// Where a piece lies, by its tensor and the place in it.
using PieceKey = std::pair<std::string, std::vector<std::int64_t>>;
struct PiecePlace {
  std::size_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

class MetadataReader {
 public:
  MetadataReader(const PickleTree& tree, std::uint64_t text_bytes, const std::string& source)
      : nodes_(tree.nodes), root_(tree.root), budget_(text_bytes), source_(source) {}

  DistributedMetadata read() {
    const NodeId state = state_of(root_, "Metadata");
    const auto paths = read_paths(state);
    read_places(field(state, "storage_data"));
    std::set<std::string> names;
    for (const auto& [key, value] : items(field(state, "state_dict_metadata"))) {
      const std::string& name = text(key);
      if (!names.insert(name).second) corrupt(concat("it has '", name, "' twice"));
      if (object_name(value) != "TensorStorageMetadata") continue;  // Some other value.
      const auto path = paths.find(name);
      add_tensor(name, path == paths.end() ? std::vector{name} : path->second, value);
    }
    check_places();
    return std::move(metadata_);
  }

 private:
  [[noreturn]] void corrupt(const std::string& what) const {
    throw CorruptFile(concat(source_, ": ", what,
                             "; it is damaged, or no metadata of torch.distributed.checkpoint: "
                             "take another copy"));
  }

  void spend(std::uint64_t bytes) {
    if (!budget_.spend(bytes)) corrupt("it unfolds to too many bytes");
  }

  // Nodes as values.

  template <class T>
  const T& as(NodeId id) const {
    const T* const node = std::get_if<T>(&nodes_[id]);
    if (node == nullptr) corrupt("a value is not of the type that its place needs");
    return *node;
  }

  bool is_none(NodeId id) const { return std::holds_alternative<PickleNone>(nodes_[id]); }

  const std::string& text(NodeId id) {
    const std::string& value = as<std::string>(id);
    spend(kNumberBytes + value.size());
    return value;
  }

  const std::vector<std::pair<NodeId, NodeId>>& items(NodeId id) {
    const auto& pairs = as<PickleDict>(id).items;
    spend(pairs.size() * kNumberBytes);
    return pairs;
  }

  /// Without its module; empty for what is no object.
  std::string_view object_name(NodeId id) const {
    const auto* const object = std::get_if<PickleObject>(&nodes_[id]);
    return object == nullptr ? std::string_view() : class_name(as<PickleGlobal>(object->name).name);
  }

  const PickleObject& object(NodeId id, std::string_view name) const {
    if (object_name(id) != name) corrupt(concat("a ", name, " is missing"));
    return as<PickleObject>(id);
  }

  NodeId state_of(NodeId id, std::string_view name) const {
    const PickleObject& found = object(id, name);
    if (!found.state) corrupt(concat("a ", name, " is empty"));
    return *found.state;
  }

  std::optional<NodeId> find_field(NodeId dict, std::string_view key) {
    std::optional<NodeId> found;
    for (const auto& [name, value] : items(dict)) {
      const auto* const text = std::get_if<std::string>(&nodes_[name]);
      if (text != nullptr && *text == key) found = value;
    }
    return found;
  }

  NodeId field(NodeId dict, std::string_view key) {
    const auto found = find_field(dict, key);
    if (!found) corrupt(concat("it has no ", key));
    return *found;
  }

  std::uint64_t count(NodeId id) const {
    const std::int64_t value = as<std::int64_t>(id);
    if (value < 0) corrupt("an offset or a length is negative");
    return static_cast<std::uint64_t>(value);
  }

  /// A torch.Size.
  std::vector<std::int64_t> sizes(NodeId id) {
    const auto& arguments = as<PickleTuple>(object(id, "Size").arguments).items;
    std::vector<std::int64_t> values;
    if (arguments.empty()) return values;
    const auto& numbers = as<PickleTuple>(arguments[0]).items;
    if (arguments.size() > 1 || numbers.size() > kMaxDimensions) corrupt("a shape is damaged");
    spend(numbers.size() * kNumberBytes);
    for (const NodeId number : numbers) values.push_back(as<std::int64_t>(number));
    return values;
  }

  // The parts.

  std::map<std::string, std::vector<std::string>> read_paths(NodeId state) {
    std::map<std::string, std::vector<std::string>> paths;
    const auto planner = find_field(state, "planner_data");
    // Other planners have other data.
    if (!planner || !std::holds_alternative<PickleDict>(nodes_[*planner])) return paths;
    for (const auto& [key, value] : items(*planner)) {
      const auto* const keys = std::get_if<PickleTuple>(&nodes_[value]);
      if (keys == nullptr) continue;
      std::vector<std::string> path;
      for (const NodeId part : keys->items) {
        const auto* const number = std::get_if<std::int64_t>(&nodes_[part]);
        spend(kNumberBytes);
        path.push_back(number ? std::to_string(*number) : text(part));
      }
      paths[text(key)] = std::move(path);
    }
    return paths;
  }

  void read_places(NodeId storage_data) {
    for (const auto& [key, value] : items(storage_data)) {
      const NodeId index = state_of(key, "MetadataIndex");
      const auto offset = find_field(index, "offset");
      if (!offset || is_none(*offset)) continue;  // Of a value that is no tensor.
      const NodeId info = state_of(value, "_StorageInfo");
      const auto transforms = find_field(info, "transform_descriptors");
      if (transforms && !is_none(*transforms)) {
        throw UsageError(concat(source_,
                                ": its data are transformed (compressed, say), which is not "
                                "supported; save it again with Python without extensions"));
      }
      PiecePlace place{.file = file_index(text(field(info, "relative_path"))),
                       .offset_bytes = count(field(info, "offset")),
                       .size_bytes = count(field(info, "length"))};
      if (place.size_bytes > UINT64_MAX / 4 || place.offset_bytes > UINT64_MAX / 4) {
        corrupt("a piece is longer than any file");
      }
      spend(kPieceBytes);
      if (!places_.emplace(PieceKey{text(field(index, "fqn")), sizes(*offset)}, place).second) {
        corrupt("a piece has two places");
      }
    }
  }

  std::size_t file_index(const std::string& name) {
    if (!is_file_name(name)) {
      corrupt(concat("'", name, "' is no file of the folder"));
    }
    const auto [found, is_new] = files_.try_emplace(name, metadata_.files.size());
    if (is_new) metadata_.files.push_back(name);
    return found->second;
  }

  c10::ScalarType dtype_of(NodeId properties) {
    const auto& values = as<PickleTuple>(state_of(properties, "TensorProperties")).items;
    if (values.empty()) corrupt("a tensor has no dtype");
    const std::string_view name = as<PickleGlobal>(values[0]).name;
    const auto dtype = dtype_of_name(name.substr(std::min(kTorch.size(), name.size())));
    if (!dtype) corrupt("a tensor has no dtype");
    return *dtype;
  }

  void add_tensor(const std::string& name, std::vector<std::string> path, NodeId value) {
    const NodeId state = state_of(value, "TensorStorageMetadata");
    spend(kTensorEntryBytes + 2 * name.size());
    DistributedTensor tensor{.name = name,
                             .path = std::move(path),
                             .dtype = dtype_of(field(state, "properties")),
                             .shape = sizes(field(state, "size"))};
    const auto element_bytes = static_cast<std::int64_t>(c10::elementSize(tensor.dtype));
    const auto elements = element_count(tensor.shape);
    std::int64_t bytes = 0;
    if (!elements || __builtin_mul_overflow(*elements, element_bytes, &bytes)) {
      corrupt(concat("tensor '", name, "' is larger than any memory"));
    }
    std::vector<TensorBox> boxes;
    for (const NodeId chunk : as<PickleList>(field(state, "chunks")).items) {
      const NodeId chunk_state = state_of(chunk, "ChunkStorageMetadata");
      TensorBox box{.begin = sizes(field(chunk_state, "offsets")),
                    .sizes = sizes(field(chunk_state, "sizes"))};
      spend(kPieceBytes);
      if (!lies_within(box, tensor.shape)) {
        corrupt(concat("a piece of tensor '", name, "' lies outside of it"));
      }
      if (*element_count(box.sizes) > 0) boxes.push_back(std::move(box));
    }
    if (!tile_the_shape(boxes, tensor.shape)) {
      corrupt(concat("the pieces of tensor '", name, "' overlap or leave gaps"));
    }
    for (TensorBox& box : boxes) {
      const auto place = places_.find(PieceKey{name, box.begin});
      if (place == places_.end()) {
        corrupt(concat("piece ", box_text(box), " of tensor '", name, "' is in no file"));
      }
      const auto [file, offset_bytes, size_bytes] = place->second;
      if (size_bytes < static_cast<std::uint64_t>(*element_count(box.sizes) * element_bytes)) {
        corrupt(concat("piece ", box_text(box), " of tensor '", name,
                       "' has more bytes than its place"));
      }
      tensor.pieces.push_back({std::move(box), file, offset_bytes, size_bytes});
    }
    metadata_.tensors.push_back(std::move(tensor));
  }

  /// Of pieces that share bytes a small file could have any number.
  void check_places() const {
    std::vector<const PiecePlace*> order;
    for (const auto& [key, place] : places_) order.push_back(&place);
    std::ranges::sort(order, {}, [](const PiecePlace* place) {
      return std::pair(place->file, place->offset_bytes);
    });
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (order[i]->file == order[i - 1]->file &&
          order[i - 1]->offset_bytes + order[i - 1]->size_bytes > order[i]->offset_bytes) {
        corrupt(concat("pieces in ", metadata_.files[order[i]->file], " overlap at byte ",
                       order[i]->offset_bytes));
      }
    }
  }

  const PickleNodes& nodes_;
  const NodeId root_;
  PickleBudget budget_;
  const std::string& source_;
  DistributedMetadata metadata_;
  std::map<std::string, std::size_t> files_;
  std::map<PieceKey, PiecePlace> places_;
};

}  // namespace

DistributedMetadata parse_distributed_metadata(std::string_view text, const std::string& source) {
  const PickleTree tree = unpickle_objects(
      text, {.is_class = is_class, .is_value = is_value, .most_protocol = 5}, source);
  return MetadataReader(tree, text.size(), concat("read ", source)).read();
}

}  // namespace lockstep::inline internal
