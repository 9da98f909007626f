#include "lockstep/snapshot/pickle/pickle_nodes.h"

#include <cstddef>
#include <utility>

#include <ATen/ops/empty.h>

namespace lockstep::inline internal {
namespace {

/// State dicts nest five deep.
constexpr int kMaxDepth = 64;
/// Twenty values a tensor for a hundred thousand tensors. Bounds the time that shared nodes take.
constexpr std::size_t kMaxValues = 2'000'000;
/// Of LibTorch's containers and strings, with their place in the heap.
constexpr std::uint64_t kContainerBytes = 256;
constexpr std::uint64_t kDictEntryBytes = 128;
constexpr std::uint64_t kStringBytes = 64;
constexpr const char* kTooManyBytes = "it unfolds to too many bytes";

class TreeBuilder {
 public:
  TreeBuilder(const PickleNodes& nodes, PickleBudget& budget, std::string& problem)
      : nodes_(nodes), budget_(budget), problem_(problem) {}

  /// False, with the reason in problem_, when it cannot be.
  bool build(NodeId id, int depth, c10::IValue& value) {
    if (depth > kMaxDepth) return fail("it is nested too deep");
    if (++values_ > kMaxValues) return fail("it unfolds to too many values");
    if (!budget_.spend(sizeof(c10::IValue))) return fail(kTooManyBytes);
    return std::visit([&](const auto& node) { return build_node(node, depth, value); }, nodes_[id]);
  }

 private:
  bool fail(const char* problem) {
    problem_ = problem;
    return false;
  }

  bool build_node(const PickleNone&, int, c10::IValue& value) {
    value = c10::IValue();
    return true;
  }

  template <class Plain>
  bool build_node(const Plain& plain, int, c10::IValue& value) {
    value = c10::IValue(plain);
    return true;
  }

  bool build_node(const std::string& text, int, c10::IValue& value) {
    if (!budget_.spend(kStringBytes + text.size())) return fail(kTooManyBytes);
    value = c10::IValue(text);
    return true;
  }

  bool build_node(const PickleMark&, int, c10::IValue&) { return fail("it ends amid a container"); }
  bool build_node(const PickleGlobal& global, int, c10::IValue&) {
    problem_ = "it holds the name '" + global.name + "' where a value should be";
    return false;
  }
  bool build_node(const PickleObject&, int, c10::IValue&) {
    return fail("it holds an object where a value should be");
  }
  bool build_node(const PickleStorage&, int, c10::IValue&) {
    return fail("it holds a storage where a tensor should be");
  }

  bool build_node(const PickleTuple& tuple, int depth, c10::IValue& value) {
    if (!has_room(tuple.items.size(), sizeof(c10::IValue))) return false;
    std::vector<c10::IValue> items(tuple.items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (!build(tuple.items[i], depth + 1, items[i])) return false;
    }
    value = c10::ivalue::Tuple::create(std::move(items));
    return true;
  }

  bool build_node(const PickleList& list, int depth, c10::IValue& value) {
    if (!has_room(list.items.size(), sizeof(c10::IValue))) return false;
    c10::impl::GenericList items(c10::AnyType::get());
    items.reserve(list.items.size());
    for (const NodeId id : list.items) {
      c10::IValue item;
      if (!build(id, depth + 1, item)) return false;
      items.push_back(std::move(item));
    }
    value = std::move(items);
    return true;
  }

  bool build_node(const PickleDict& dict, int depth, c10::IValue& value) {
    if (!has_room(dict.items.size(), kDictEntryBytes)) return false;
    c10::impl::GenericDict items(c10::AnyType::get(), c10::AnyType::get());
    items.reserve(dict.items.size());
    for (const auto& [key_id, value_id] : dict.items) {
      c10::IValue key;
      c10::IValue item;
      if (!build(key_id, depth + 1, key) || !build(value_id, depth + 1, item)) return false;
      if (!key.isString() && !key.isInt()) return fail("it has a key that is no string or integer");
      items.insert_or_assign(std::move(key), std::move(item));
    }
    value = std::move(items);
    return true;
  }

  bool has_room(std::uint64_t items, std::uint64_t item_bytes) {
    return budget_.spend(kContainerBytes + items * item_bytes) || fail(kTooManyBytes);
  }

  const PickleNodes& nodes_;
  PickleBudget& budget_;
  std::string& problem_;
  std::size_t values_ = 0;
};

bool lies_within(std::int64_t elements, std::int64_t offset, const std::vector<std::int64_t>& sizes,
                 const std::vector<std::int64_t>& strides) {
  if (offset < 0 || sizes.size() != strides.size() || sizes.size() > kMaxDimensions) return false;
  std::int64_t count = 1;
  std::int64_t last = offset;
  bool empty = false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::int64_t reach = 0;
    if (sizes[i] < 0 || strides[i] < 0) return false;
    if (sizes[i] == 0) {
      empty = true;
      continue;
    }
    if (__builtin_mul_overflow(sizes[i] - 1, strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last) ||
        __builtin_mul_overflow(count, sizes[i], &count)) {
      return false;
    }
  }
  return empty ? offset <= elements : last < elements;
}

}  // namespace

std::optional<c10::IValue> to_value(const PickleNodes& nodes, NodeId root, PickleBudget& budget,
                                    std::string& problem) {
  c10::IValue value;
  if (!TreeBuilder(nodes, budget, problem).build(root, 0, value)) return std::nullopt;
  return value;
}

at::Tensor tensor_over(const at::Tensor& bytes, c10::ScalarType dtype, std::int64_t offset,
                       const std::vector<std::int64_t>& sizes,
                       const std::vector<std::int64_t>& strides) {
  const std::size_t elements = bytes.nbytes() / c10::elementSize(dtype);
  if (!lies_within(static_cast<std::int64_t>(elements), offset, sizes, strides)) return {};
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(dtype));
  tensor.set_(bytes.storage(), offset, sizes, strides);
  return tensor;
}

}  // namespace lockstep::inline internal
