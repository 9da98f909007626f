#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace lockstep {

/// A value as files have it: a pickle that names storages "0", "1", …, and tensors over these.
struct Pickled {
  std::string pickle;
  std::vector<at::Tensor> storages;
};

/// Of a writable_value(). The tensors share its memory.
Pickled pickle(const c10::IValue& value);

}  // namespace lockstep
