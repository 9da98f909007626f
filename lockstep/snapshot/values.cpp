#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/save.h"

namespace lockstep {
namespace {

[[noreturn]] void unexpected(const std::string& source, const std::string& what) {
  throw UsageError(concat(source, ": ", what, "; it is no state dict or snapshot"));
}

}  // namespace

c10::impl::GenericDict make_dict() {
  return c10::impl::GenericDict(c10::AnyType::get(), c10::AnyType::get());
}

c10::impl::GenericList make_list() {
  return c10::impl::GenericList(c10::AnyType::get());
}

c10::IValue tensor_dict_value(const TensorDict& tensors) {
  c10::impl::GenericDict dict = make_dict();
  for (const auto& [name, tensor] : tensors) dict.insert_or_assign(name, tensor);
  return dict;
}

c10::IValue tensor_list_value(const std::vector<at::Tensor>& tensors) {
  c10::impl::GenericList list = make_list();
  for (const at::Tensor& tensor : tensors) list.push_back(tensor);
  return list;
}

c10::IValue find_value(const c10::IValue& dict, const std::string& key) {
  const c10::impl::GenericDict items = dict.toGenericDict();
  const auto found = items.find(key);
  return found == items.end() ? c10::IValue() : found->value();
}

c10::IValue entry(const c10::IValue& dict, const std::string& key, const std::string& source) {
  if (!dict.isGenericDict()) unexpected(source, concat("'", key, "' is looked for in no dict"));
  const c10::impl::GenericDict items = dict.toGenericDict();
  const auto found = items.find(key);
  if (found == items.end()) unexpected(source, concat("it has no '", key, "'"));
  return found->value();
}

std::int64_t integer_entry(const c10::IValue& dict, const std::string& key,
                           const std::string& source) {
  const c10::IValue value = entry(dict, key, source);
  if (!value.isInt()) unexpected(source, concat("'", key, "' is no integer"));
  return value.toInt();
}

TensorDict tensor_dict(const c10::IValue& value, const std::string& source) {
  if (!value.isGenericDict()) unexpected(source, "it holds no dict of tensors");
  TensorDict result;
  for (const auto& item : value.toGenericDict()) {
    if (!item.key().isString() || !item.value().isTensor()) {
      unexpected(source, concat("its entry ", item.key(), " is no named tensor"));
    }
    result.emplace_back(item.key().toStringRef(), item.value().toTensor());
  }
  return result;
}

std::vector<at::Tensor> tensor_list(const c10::IValue& value, const std::string& source) {
  if (!value.isList()) unexpected(source, "it holds no list of tensors");
  std::vector<at::Tensor> result;
  const c10::ArrayRef<c10::IValue> items = value.toListRef();
  for (const c10::IValue& item : items) {
    if (!item.isTensor()) unexpected(source, "it holds no list of tensors");
    result.push_back(item.toTensor());
  }
  return result;
}

}  // namespace lockstep
