#include "lockstep/snapshot/pickle/unpickler.h"

#include <bit>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/pickle/not_a_checkpoint.h"
#include "lockstep/snapshot/pickle/pickle_nodes.h"
#include "lockstep/snapshot/pickle/pickle_opcodes.h"
#include "lockstep/snapshot/pickle/storage_types.h"

namespace lockstep::inline internal {
namespace {

constexpr std::string_view kOrderedDict = "collections.OrderedDict";
constexpr std::string_view kCounter = "collections.Counter";
constexpr std::string_view kRebuildTensor = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view kRebuildUntypedTensor = "torch._utils._rebuild_tensor_v3";
constexpr std::string_view kRebuildParameter = "torch._utils._rebuild_parameter";
constexpr std::string_view kTorchModule = "torch.";
constexpr std::string_view kUntypedStorage = "torch.storage.UntypedStorage";
/// One opcode makes at most one node; a tensor takes about 20.
constexpr std::size_t kMaxNodes = 16'000'000;
/// Of one without its data.
constexpr std::uint64_t kTensorBytes = 512;
/// Of a module and a class. Protocol 4 joins two texts that each of many names may share.
constexpr std::size_t kMaxNameBytes = 200;
/// How much of a longer one an error has.
constexpr std::size_t kShownNameBytes = 40;

bool is_part_of_tensors(std::string_view full) {
  if (full == kOrderedDict || full == kCounter || full == kRebuildTensor ||
      full == kRebuildUntypedTensor || full == kRebuildParameter || full == kUntypedStorage) {
    return true;
  }
  if (!full.starts_with(kTorchModule)) return false;
  const std::string_view name = full.substr(kTorchModule.size());
  return storage_dtype(name) || untyped_dtype(name);
}

bool is_no_class(std::string_view) {
  return false;
}

constexpr PickleNames kTensorNames{.is_class = is_no_class, .is_value = is_part_of_tensors};

class Unpickler {
 public:
  Unpickler(std::string_view pickle, const PickleNames& names, const StorageReader& read_storage,
            const std::string& file)
      : pickle_(pickle),
        names_(names),
        read_storage_(read_storage),
        file_(file),
        budget_(pickle.size()) {}

  c10::IValue value() {
    const NodeId root = run();
    std::string problem;
    std::optional<c10::IValue> value = to_value(nodes_, root, budget_, problem);
    if (!value) corrupt(problem);
    return *std::move(value);
  }

  PickleTree tree() {
    const NodeId root = run();
    return {std::move(nodes_), root};
  }

 private:
  NodeId run() {
    while (step()) {
    }
    return pop();
  }

  /// Carries out one instruction. Returns false after the last.
  bool step() {
    const auto code = read<std::uint8_t>();
    switch (static_cast<PickleOpcode>(code)) {
      case PickleOpcode::kProto:
        if (const auto protocol = read<std::uint8_t>();
            protocol < 2 || protocol > names_.most_protocol) {
          corrupt(concat("it is of pickle protocol ", int{protocol}));
        }
        return true;
      case PickleOpcode::kStop:
        return false;
      case PickleOpcode::kMark:
        return push(PickleMark{});
      case PickleOpcode::kNone:
        return push(PickleNone{});
      case PickleOpcode::kNewTrue:
        return push(true);
      case PickleOpcode::kNewFalse:
        return push(false);
      case PickleOpcode::kBinInt:
        return push(std::int64_t{read<std::int32_t>()});
      case PickleOpcode::kBinInt1:
        return push(std::int64_t{read<std::uint8_t>()});
      case PickleOpcode::kBinInt2:
        return push(std::int64_t{read<std::uint16_t>()});
      case PickleOpcode::kLong1:
        return push(read_long());
      case PickleOpcode::kBinFloat:
        return push(std::bit_cast<double>(__builtin_bswap64(read<std::uint64_t>())));
      case PickleOpcode::kBinUnicode:
        return push(std::string(take(read<std::uint32_t>())));
      case PickleOpcode::kEmptyTuple:
        return push(PickleTuple{});
      case PickleOpcode::kTuple:
        return push(PickleTuple{pop_to_mark()});
      case PickleOpcode::kTuple1:
        return push(PickleTuple{pop_last(1)});
      case PickleOpcode::kTuple2:
        return push(PickleTuple{pop_last(2)});
      case PickleOpcode::kTuple3:
        return push(PickleTuple{pop_last(3)});
      case PickleOpcode::kEmptyList:
        return push(PickleList{});
      case PickleOpcode::kAppend:
        return append(pop_last(1));
      case PickleOpcode::kAppends:
        return append(pop_to_mark());
      case PickleOpcode::kEmptyDict:
        return push(PickleDict{});
      case PickleOpcode::kSetItem:
        return set_items(pop_last(2));
      case PickleOpcode::kSetItems:
        return set_items(pop_to_mark());
      case PickleOpcode::kGlobal:
        return push_global();
      case PickleOpcode::kReduce:
        return reduce();
      case PickleOpcode::kBuild:
        return build();
      case PickleOpcode::kBinPersId:
        return load_storage();
      case PickleOpcode::kBinPut:
        return remember(read<std::uint8_t>());
      case PickleOpcode::kLongBinPut:
        return remember(read<std::uint32_t>());
      case PickleOpcode::kBinGet:
        return recall(read<std::uint8_t>());
      case PickleOpcode::kLongBinGet:
        return recall(read<std::uint32_t>());
      case PickleOpcode::kNewObject:
        return reduce();
      case PickleOpcode::kShortBinUnicode:
        return push(std::string(take(read<std::uint8_t>())));
      case PickleOpcode::kStackGlobal:
        return push_stacked_global();
      case PickleOpcode::kMemoize:
        return remember(static_cast<std::uint32_t>(memo_.size()));
      case PickleOpcode::kFrame:
        read<std::uint64_t>();
        return true;
    }
    corrupt(concat("opcode ", int{code}, " is not one that state dicts need"));
  }

  // The bytes.

  std::string_view take(std::size_t bytes) {
    if (bytes > pickle_.size() - position_) corrupt("it ends too early");
    const std::string_view taken = pickle_.substr(position_, bytes);
    position_ += bytes;
    return taken;
  }

  template <class Integer>
  Integer read() {
    Integer value{};
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }

  std::int64_t read_long() {
    const std::string_view bytes = take(read<std::uint8_t>());
    if (bytes.size() > sizeof(std::int64_t)) corrupt("an integer has more than 64 bits");
    // Two's complement, least significant byte first, as short as it goes.
    const bool negative = !bytes.empty() && static_cast<signed char>(bytes.back()) < 0;
    std::int64_t value = negative ? -1 : 0;
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }

  std::string_view read_line() {
    const std::size_t end = pickle_.find('\n', position_);
    if (end == std::string_view::npos) corrupt("it ends too early");
    const std::string_view line = take(end - position_);
    take(1);
    return line;
  }

  // The stack and the memo.

  bool push(PickleNode node) {
    if (nodes_.size() >= kMaxNodes) corrupt("it has too many values");
    nodes_.push_back(std::move(node));
    stack_.push_back(nodes_.size() - 1);
    return true;
  }

  NodeId pop() {
    if (stack_.empty()) corrupt("it takes more values than it gives");
    const NodeId top = stack_.back();
    stack_.pop_back();
    return top;
  }

  std::vector<NodeId> pop_last(std::size_t count) {
    if (stack_.size() < count) corrupt("it takes more values than it gives");
    std::vector<NodeId> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }

  std::vector<NodeId> pop_to_mark() {
    std::size_t count = 0;
    while (count < stack_.size() &&
           !std::holds_alternative<PickleMark>(nodes_[stack_[stack_.size() - 1 - count]])) {
      ++count;
    }
    std::vector<NodeId> items = pop_last(count);
    pop();
    return items;
  }

  /// The node as a T. Errors: CorruptFile when it is something else.
  template <class T>
  T& as(NodeId id) {
    T* node = std::get_if<T>(&nodes_[id]);
    if (node == nullptr) corrupt("a value is not of the type that its place needs");
    return *node;
  }

  template <class T>
  T& top() {
    if (stack_.empty()) corrupt("it takes more values than it gives");
    return as<T>(stack_.back());
  }

  bool remember(std::uint32_t slot) {
    if (stack_.empty()) corrupt("it takes more values than it gives");
    memo_[slot] = stack_.back();
    return true;
  }

  bool recall(std::uint32_t slot) {
    const auto found = memo_.find(slot);
    if (found == memo_.end()) corrupt("it refers to a value that it did not store");
    stack_.push_back(found->second);
    return true;
  }

  // Containers.

  bool append(const std::vector<NodeId>& items) {
    auto& target = top<PickleList>().items;
    target.insert(target.end(), items.begin(), items.end());
    return true;
  }

  bool set_items(const std::vector<NodeId>& items) {
    if (items.size() % 2 != 0) corrupt("a key has no value");
    auto& target = top<PickleDict>().items;
    for (std::size_t i = 0; i < items.size(); i += 2) target.emplace_back(items[i], items[i + 1]);
    return true;
  }

  // Names, and the few things that they may do.

  bool push_global() {
    const std::string_view module = read_line();
    const std::string_view name = read_line();
    return push_name(module, name);
  }

  bool push_stacked_global() {
    const NodeId name = pop();
    const NodeId module = pop();
    return push_name(as<std::string>(module), as<std::string>(name));
  }

  bool push_name(std::string_view module, std::string_view name) {
    if (module.size() + name.size() > kMaxNameBytes) {
      refuse(concat(module.substr(0, kShownNameBytes), "…", " of ", module.size() + name.size(),
                    " bytes"));
    }
    std::string full = concat(module, ".", name);
    if (!names_.is_class(full) && !names_.is_value(full)) refuse(full);
    return push(PickleGlobal{std::move(full)});
  }

  bool reduce() {
    const NodeId arguments_id = pop();
    const NodeId name_id = pop();
    const std::vector<NodeId>& arguments = as<PickleTuple>(arguments_id).items;
    const std::string& name = as<PickleGlobal>(name_id).name;
    if (names_.is_class(name)) return push(PickleObject{name_id, arguments_id});
    if (name == kOrderedDict && arguments.empty()) return push(PickleDict{{}, true});
    if (name == kCounter && arguments.size() == 1) {
      const auto& items = as<PickleDict>(arguments[0]).items;
      // Many counters may copy one dict of many items.
      if (!budget_.spend(items.size() * sizeof(items[0])))
        corrupt("its counters have too many items");
      return push(PickleDict{items, true});
    }
    if (name == kRebuildTensor && arguments.size() == 6) return push(rebuild_tensor(arguments));
    if (name == kRebuildUntypedTensor && arguments.size() == 7) {
      return push(rebuild_untyped_tensor(arguments));
    }
    if (name == kRebuildParameter && arguments.size() == 3) {
      return push(as<at::Tensor>(arguments[0]));
    }
    corrupt(concat("'", name, "' has the wrong arguments"));
  }

  /// The state of an object, or attributes of an OrderedDict: PyTorch keeps the version of modules
  /// there, of no use to us.
  bool build() {
    const NodeId state = pop();
    if (!stack_.empty() && std::holds_alternative<PickleObject>(nodes_[stack_.back()])) {
      top<PickleObject>().state = state;
      return true;
    }
    as<PickleDict>(state);
    if (!top<PickleDict>().ordered) corrupt("attributes on something that has none");
    return true;
  }

  bool load_storage() {
    const std::vector<NodeId>& id = as<PickleTuple>(pop()).items;
    if (id.size() != 5 || as<std::string>(id[0]) != "storage") corrupt("a storage is damaged");
    const c10::ScalarType dtype = dtype_of_storage(as<PickleGlobal>(id[1]).name);
    const bool is_untyped = dtype == c10::ScalarType::Undefined;
    const std::string& key = as<std::string>(id[2]);
    std::uint64_t bytes = 0;
    const std::int64_t count = as<std::int64_t>(id[4]);
    if (count < 0 || __builtin_mul_overflow(static_cast<std::uint64_t>(count),
                                            is_untyped ? 1 : c10::elementSize(dtype), &bytes)) {
      corrupt("a storage is damaged");
    }
    at::Tensor& storage = storages_[key];
    if (!storage.defined()) storage = read_storage_(key, bytes);
    if (storage.nbytes() != bytes) corrupt(concat("storage '", key, "' has two sizes"));
    return push(PickleStorage{storage, dtype});
  }

  /// Undefined for an untyped one.
  c10::ScalarType dtype_of_storage(std::string_view class_name) {
    if (class_name == kUntypedStorage) return c10::ScalarType::Undefined;
    return dtype_named(class_name, storage_dtype);
  }

  /// What `find` gives for a name of the module torch.
  c10::ScalarType dtype_named(std::string_view full,
                              std::optional<c10::ScalarType> (*find)(std::string_view)) {
    if (!full.starts_with(kTorchModule)) corrupt("a dtype is damaged");
    const auto dtype = find(full.substr(kTorchModule.size()));
    if (!dtype) corrupt("a dtype is damaged");
    return *dtype;
  }

  /// (storage, offset, sizes, strides, requires_grad, hooks); with more it is refused.
  at::Tensor rebuild_tensor(const std::vector<NodeId>& arguments) {
    const PickleStorage& storage = as<PickleStorage>(arguments[0]);
    if (storage.dtype == c10::ScalarType::Undefined) corrupt("a tensor has no dtype");
    return rebuild(storage.bytes, storage.dtype, arguments);
  }

  /// The same, of an untyped storage, and the dtype.
  at::Tensor rebuild_untyped_tensor(const std::vector<NodeId>& arguments) {
    const PickleStorage& storage = as<PickleStorage>(arguments[0]);
    const std::string& name = as<PickleGlobal>(arguments[6]).name;
    if (storage.dtype != c10::ScalarType::Undefined) corrupt("a tensor has two dtypes");
    return rebuild(storage.bytes, dtype_named(name, untyped_dtype), arguments);
  }

  at::Tensor rebuild(const at::Tensor& bytes, c10::ScalarType dtype,
                     const std::vector<NodeId>& arguments) {
    if (!budget_.spend(kTensorBytes)) corrupt("it has too many tensors");
    at::Tensor tensor = tensor_over(bytes, dtype, as<std::int64_t>(arguments[1]),
                                    integers(arguments[2]), integers(arguments[3]));
    if (!tensor.defined()) corrupt("a tensor reaches beyond its storage");
    return tensor;
  }

  std::vector<std::int64_t> integers(NodeId id) {
    const std::vector<NodeId>& items = as<PickleTuple>(id).items;
    // Before they are copied: many tensors may name one tuple of many.
    if (items.size() > kMaxDimensions) corrupt("a tensor has too many dimensions");
    std::vector<std::int64_t> values;
    for (const NodeId item : items) values.push_back(as<std::int64_t>(item));
    return values;
  }

  [[noreturn]] void corrupt(const std::string& reason) const {
    throw CorruptFile(concat("read ", file_, ": its pickle is damaged: ", reason,
                             "; take another copy, or delete it and start anew"));
  }

  [[noreturn]] void refuse(const std::string& name) const {
    throw NotACheckpoint(
        concat("read ", file_, ": it refers to '", name,
               "', which is refused: only tensors, numbers, strings, tuples, lists "
               "and dicts are read; save a state_dict"));
  }

  const std::string_view pickle_;
  std::size_t position_ = 0;
  const PickleNames& names_;
  const StorageReader& read_storage_;
  const std::string& file_;
  PickleBudget budget_;
  PickleNodes nodes_;
  std::vector<NodeId> stack_;
  std::unordered_map<std::uint32_t, NodeId> memo_;
  std::unordered_map<std::string, at::Tensor> storages_;
};

}  // namespace

c10::IValue unpickle(std::string_view pickle, const StorageReader& read_storage,
                     const std::string& file) {
  return Unpickler(pickle, kTensorNames, read_storage, file).value();
}

PickleTree unpickle_objects(std::string_view pickle, const PickleNames& names,
                            const std::string& file) {
  const StorageReader no_storage = [&](const std::string&, std::uint64_t) -> at::Tensor {
    throw CorruptFile(concat("read ", file, ": it has a tensor where there can be none"));
  };
  return Unpickler(pickle, names, no_storage, file).tree();
}

}  // namespace lockstep::inline internal
