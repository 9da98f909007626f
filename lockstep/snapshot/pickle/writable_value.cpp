#include "lockstep/snapshot/pickle/writable_value.h"

#include <string>
#include <unordered_map>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/pickle/storage_types.h"
#include "lockstep/snapshot/save.h"

namespace lockstep::inline internal {
namespace {

class WritableTree {
 public:
  /// `name` is where the value stands in the tree: "model.first.weight".
  c10::IValue make(const c10::IValue& value, const std::string& name) {
    if (value.isTensor()) return make_tensor(value.toTensor(), name);
    if (value.isGenericDict()) {
      c10::impl::GenericDict dict = make_dict();
      for (const auto& item : value.toGenericDict()) {
        const std::string key =
            item.key().isString() ? item.key().toStringRef() : concat(item.key());
        dict.insert_or_assign(item.key(), make(item.value(), below(name, key)));
      }
      return dict;
    }
    if (value.isList()) {
      c10::impl::GenericList list = make_list();
      for (const c10::IValue& item : value.toListRef()) {
        list.push_back(make(item, below(name, std::to_string(list.size()))));
      }
      return list;
    }
    return value;
  }

 private:
  static std::string below(const std::string& name, const std::string& key) {
    return name.empty() ? key : concat(name, ".", key);
  }

  at::Tensor make_tensor(const at::Tensor& tensor, const std::string& name) {
    if (!tensor.defined()) fail(name, "an undefined tensor");
    if (tensor.layout() != at::kStrided || tensor.is_quantized() ||
        !is_storable(tensor.scalar_type())) {
      fail(name,
           concat("a tensor of dtype ", tensor.dtype().name(), " and layout ", tensor.layout()));
    }
    const at::Tensor result = tensor.detach().resolve_conj().resolve_neg().cpu();
    const auto [known, is_new] =
        storage_dtypes_.try_emplace(result.storage().unsafeGetStorageImpl(), result.scalar_type());
    return is_new || known->second == result.scalar_type() ? result : result.clone();
  }

  [[noreturn]] static void fail(const std::string& name, const std::string& what) {
    throw UsageError(
        concat("save '", name, "': ", what,
               " cannot be stored; convert it to a dense tensor of a standard dtype, or write a "
               "safetensors file, which has float8 and unsigned integers too"));
  }

  std::unordered_map<const c10::StorageImpl*, c10::ScalarType> storage_dtypes_;
};

}  // namespace

c10::IValue writable_value(const c10::IValue& value) {
  return WritableTree().make(value, "");
}

}  // namespace lockstep::inline internal
