#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/snapshot/tensor_dict.h"

/// Plain values to and from the trees that pickle archives hold. `source`, in messages, is what was
/// being done with which file: "load run/snapshot.pt".
namespace lockstep {

c10::impl::GenericDict make_dict();
c10::impl::GenericList make_list();

c10::IValue tensor_dict_value(const TensorDict& tensors);
c10::IValue tensor_list_value(const std::vector<at::Tensor>& tensors);

/// The entry of a dict, or None when there is none. `dict` must be a dict.
c10::IValue find_value(const c10::IValue& dict, const std::string& key);

// Errors: UsageError saying that it is not what was expected.
c10::IValue entry(const c10::IValue& dict, const std::string& key, const std::string& source);
std::int64_t integer_entry(const c10::IValue& dict, const std::string& key,
                           const std::string& source);
TensorDict tensor_dict(const c10::IValue& value, const std::string& source);
std::vector<at::Tensor> tensor_list(const c10::IValue& value, const std::string& source);

}  // namespace lockstep
