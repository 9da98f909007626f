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
      const std::string text = key.isString() ? key.toStringRef() : concat(key);
      dict.insert_or_assign(key, map_below(item.value(), below(name, text), map));
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

}  // namespace

c10::IValue map_tensors(const c10::IValue& tree, const TensorMap& map) {
  return map_below(tree, "", map);
}

void visit_tensors(const c10::IValue& tree,
                   const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  map_tensors(tree, [&](const std::string& name, const at::Tensor& tensor) {
    visit(name, tensor);
    return tensor;
  });
}

}  // namespace lockstep::inline internal
