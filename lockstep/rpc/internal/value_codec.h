#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/rpc/internal/byte_stream.h"

namespace lockstep::rpc::inline internal {

/// Identifies a value on its owner; the same on every worker.
struct RRefKey {
  std::int32_t owner = 0;    ///< rank
  std::int32_t creator = 0;  ///< rank of the worker that numbered it
  std::int64_t number = 0;

  auto operator<=>(const RRefKey&) const = default;
};

/// What accompanies the bytes of a value: tensors, and conversions of RRefs.
struct ValueContext {
  std::vector<at::Tensor> tensors;
  std::function<RRefKey(const c10::IValue&)> name_rref;
  std::function<c10::IValue(const RRefKey&)> make_rref;
  /// True in a distributed autograd context: tensors with gradients stay outside of the bytes.
  /// Other small CPU tensors are stored in the bytes, which makes one message instead of several.
  bool keeps_graph = false;
};

/// Largest tensor in the bytes; beyond it the copy costs more than it saves.
inline constexpr std::int64_t kInlineTensorBytes = 16 * 1024;

/// Serializes None, bool, int, float, str, Tensor (also sparse COO, without its graph), lists and
/// dicts of these with their element types, tuples, and RRefs.
/// Errors: UsageError that names the type of anything else, and for nesting deeper than 32.
void write_value(const c10::IValue& value, ByteWriter& bytes, ValueContext& context);

/// Parsing n bytes takes at most kAnyValueBytes + n * kValueBytesAByte bytes; a tensor of one
/// element and an optional type need the most memory per byte.
inline constexpr std::uint64_t kValueBytesAByte = 256;
inline constexpr std::uint64_t kAnyValueBytes = std::uint64_t{4} << 20;

/// Parses untrusted bytes: executes nothing, makes only the above values, and allocates no more
/// than this limit.
/// Errors: UsageError that says what is wrong.
c10::IValue read_value(ByteReader& bytes, const ValueContext& context);

/// Description of a strided tensor, not quantized, that is sent before its elements.
struct TensorHead {
  at::ScalarType dtype = at::ScalarType::Undefined;
  bool requires_grad = false;
  std::vector<std::int64_t> sizes = {};
  std::uint64_t size_bytes = 0;

  /// A tensor with undefined contents.
  /// Errors: UsageError for a description that LibTorch cannot make.
  at::Tensor make() const;
  /// A tensor over these elements; `give_back` is called when nothing refers to them any more.
  at::Tensor make(std::byte* elements, std::function<void()> give_back) const;
};
inline constexpr int kMostTensorDimensions = 64;

/// Whether tensors of this dtype are sent: not quantized ones, and not those of a few bits, for
/// some of which LibTorch knows no size.
bool is_sent(at::ScalarType dtype);
void write_head(const at::Tensor& tensor, ByteWriter& bytes);
/// Parses a description.
/// Errors: UsageError for invalid bytes.
TensorHead read_head(ByteReader& bytes);

void write_key(const RRefKey& key, ByteWriter& bytes);
RRefKey read_key(ByteReader& bytes);

}  // namespace lockstep::rpc::inline internal
