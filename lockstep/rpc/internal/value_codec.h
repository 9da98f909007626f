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

/// A value that is kept on its owner: the same key on every worker.
struct RRefKey {
  std::int32_t owner = 0;    ///< rank
  std::int32_t creator = 0;  ///< rank of the worker that numbered it
  std::int64_t number = 0;

  auto operator<=>(const RRefKey&) const = default;
};

/// What travels beside the bytes of a value: tensors by reference, and how references to values on
/// other workers are named and made.
struct ValueContext {
  std::vector<at::Tensor> tensors;
  std::function<RRefKey(const c10::IValue&)> name_rref;
  std::function<c10::IValue(const RRefKey&)> make_rref;
  /// Small tensors on the CPU go with the bytes, which is one message instead of several; but for
  /// those that gradients flow through, where a call is part of a distributed autograd context.
  bool keeps_graph = false;
};

/// Small enough to go with the bytes: above it the copy costs more than what it saves.
inline constexpr std::int64_t kInlineTensorBytes = 16 * 1024;

/// None, bool, int, float, str, Tensor (sparse COO too, without its graph), lists and dicts of
/// these with the types of their elements, tuples, and references to values on other workers
/// (RRef). Errors: UsageError naming the type of anything else, and for values nested deeper
/// than 32.
void write_value(const c10::IValue& value, ByteWriter& bytes, ValueContext& context);

/// What is read from n bytes takes at most kAnyValueBytes + n * kValueBytesAByte: of all values, a
/// tensor of one element and an optional type have the fewest bytes for what they take.
inline constexpr std::uint64_t kValueBytesAByte = 256;
inline constexpr std::uint64_t kAnyValueBytes = std::uint64_t{4} << 20;

/// The inverse, of bytes that anybody may have sent: executes nothing, makes only the above, and
/// allocates no more than that. Errors: UsageError saying what is wrong.
c10::IValue read_value(ByteReader& bytes, const ValueContext& context);

/// What is sent of a tensor before its elements: of a strided one that is not quantized.
struct TensorHead {
  at::ScalarType dtype = at::ScalarType::Undefined;
  bool requires_grad = false;
  std::vector<std::int64_t> sizes = {};
  std::uint64_t size_bytes = 0;

  /// Contents are undefined. Errors: UsageError for one that LibTorch cannot make.
  at::Tensor make() const;
  /// Of elements that lie there; `give_back` is called when nothing refers to them any more.
  at::Tensor make(std::byte* elements, std::function<void()> give_back) const;
};
inline constexpr int kMostTensorDimensions = 64;

/// Whether tensors of such elements are sent: not quantized ones, and not those of a few bits, of
/// some of which LibTorch knows no size.
bool is_sent(at::ScalarType dtype);
void write_head(const at::Tensor& tensor, ByteWriter& bytes);
/// Errors: UsageError for what is no such head.
TensorHead read_head(ByteReader& bytes);

void write_key(const RRefKey& key, ByteWriter& bytes);
RRefKey read_key(ByteReader& bytes);

}  // namespace lockstep::rpc::inline internal
