// What workers of live jobs print, each line after the process's pid, and the bits of their state.
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <unistd.h>

#include "lockstep/base/internal/concat.h"

namespace lockstep::testing {

inline void say(const std::string& text) {
  std::puts(concat(::getpid(), " ", text).c_str());
  std::fflush(stdout);
}

// FNV-1a.
inline void hash(std::uint64_t& sum, const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  const auto* const bytes = static_cast<const unsigned char*>(dense.const_data_ptr());
  for (const unsigned char byte : std::span(bytes, dense.nbytes())) {
    sum = (sum ^ byte) * 0x100000001b3U;
  }
}

inline void hash(std::uint64_t& sum, const c10::IValue& value) {
  if (value.isTensor()) {
    hash(sum, value.toTensor());
  } else if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) hash(sum, item.value());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) hash(sum, item);
  } else if (value.isDouble()) {
    hash(sum, at::tensor(value.toDouble(), at::kDouble));
  }
}

}  // namespace lockstep::testing
