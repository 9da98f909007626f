#include "lockstep/snapshot/internal/value_tree.h"

#include <vector>

#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/save.h"

namespace lockstep::inline internal {
namespace {

std::string below(const std::string& name, const std::string& key) {
  return name.empty() ? key : concat(name, ".", key);
}

c10::IValue map_below(const c10::IValue& value, const std::string& name, const TensorMap& map) {
  if (value.isTensor()) return map(name, value.toTensor());
  if (value.isGenericDict()) {
    c10::impl::GenericDict dict = make_dict();
    for (const auto& item : value.toGenericDict()) {
      const c10::IValue& key = item.key();
      dict.insert_or_assign(key, map_below(item.value(), below(name, key_text(key)), map));
    }
    return dict;
  }
  if (value.isList()) {
    c10::impl::GenericList list = make_list();
    for (const c10::IValue& item : value.toListRef()) {
      list.push_back(map_below(item, below(name, std::to_string(list.size())), map));
    }
    return list;
  }
  if (value.isTuple()) {
    std::vector<c10::IValue> items;
    for (const c10::IValue& item : value.toTupleRef().elements()) {
      items.push_back(map_below(item, below(name, std::to_string(items.size())), map));
    }
    return c10::ivalue::Tuple::create(std::move(items));
  }
  return value;
}

/// Calls `visit` with each tensor of a tree.
class TreeWalk {
 public:
  explicit TreeWalk(const TensorVisit& visit) : visit_(visit) {}

  void walk(const c10::IValue& value) {
    if (value.isTensor()) return visit_(name_, value.toTensor());
    if (value.isGenericDict()) {
      for (const auto& item : value.toGenericDict()) enter(key_text(item.key()), item.value());
    } else if (value.isList()) {
      std::size_t index = 0;
      for (const c10::IValue& item : value.toListRef()) enter(std::to_string(index++), item);
    } else if (value.isTuple()) {
      std::size_t index = 0;
      for (const c10::IValue& item : value.toTupleRef().elements()) {
        enter(std::to_string(index++), item);
      }
    }
  }

 private:
  void enter(const std::string& key, const c10::IValue& value) {
    const std::size_t length = name_.size();
    if (length > 0) name_ += ".";
    name_ += key;
    walk(value);
    name_.resize(length);
  }

  const TensorVisit& visit_;
  /// One for all: a copy a level would take the square of a long name.
  std::string name_;
};

}  // namespace

std::string key_text(const c10::IValue& key) {
  return key.isString() ? key.toStringRef() : concat(key);
}

c10::IValue map_tensors(const c10::IValue& tree, const TensorMap& map) {
  return map_below(tree, "", map);
}

void visit_tensors(const c10::IValue& tree, const TensorVisit& visit) {
  TreeWalk(visit).walk(tree);
}

}  // namespace lockstep::inline internal
