#include "lockstep/rpc/internal/value_codec.h"

#include <limits>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <c10/core/CPUAllocator.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/error_text.h"
#include "lockstep/rpc/internal/element_type.h"

namespace lockstep::rpc::inline internal {
namespace {

constexpr int kDeepest = 32;

enum class Tag : std::uint8_t {
  kNone,
  kFalse,
  kTrue,
  kInt,
  kDouble,
  kString,
  kTensor,        ///< one of the context's
  kInlineTensor,  ///< dtype, sizes and elements follow
  kSparseTensor,  ///< sizes, indices and values follow
  kUndefinedTensor,
  kList,
  kInts,     ///< a list, packed
  kDoubles,  ///< a list, packed
  kDict,
  kTuple,
  kRRef,
};

void check_depth(int depth) {
  if (depth > kDeepest) throw UsageError(concat("values nested deeper than ", kDeepest));
}

bool goes_inline(const at::Tensor& tensor, const ValueContext& context) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
         static_cast<std::int64_t>(tensor.nbytes()) <= kInlineTensorBytes &&
         tensor.dim() <= kMostTensorDimensions && !(context.keeps_graph && tensor.requires_grad());
}

void write_sizes(const at::Tensor& tensor, ByteWriter& bytes) {
  bytes.put(static_cast<std::uint8_t>(tensor.dim()));
  for (const auto size : tensor.sizes()) bytes.put(static_cast<std::int64_t>(size));
}

void write_tensor(const at::Tensor& tensor, ByteWriter& bytes, ValueContext& context) {
  if (!tensor.defined()) {
    bytes.put(Tag::kUndefinedTensor);
  } else if (tensor.layout() == at::kSparse) {
    const at::Tensor whole = tensor.detach().coalesce();
    bytes.put(Tag::kSparseTensor);
    write_sizes(whole, bytes);
    write_tensor(whole.indices(), bytes, context);
    write_tensor(whole.values(), bytes, context);
  } else if (goes_inline(tensor, context)) {
    const at::Tensor dense = tensor.detach().resolve_conj().resolve_neg().contiguous();
    bytes.put(Tag::kInlineTensor);
    write_head(tensor, bytes);
    bytes.put_bytes(dense.const_data_ptr(), dense.nbytes());
  } else if (tensor.layout() == at::kStrided) {
    bytes.put(Tag::kTensor);
    bytes.put(static_cast<std::uint32_t>(context.tensors.size()));
    context.tensors.push_back(tensor);
  } else {
    throw UsageError(concat("a tensor of layout ", tensor.layout(),
                            " cannot be sent; make it strided or sparse COO"));
  }
}

void write_nested(const c10::IValue& value, ByteWriter& bytes, ValueContext& context, int depth) {
  check_depth(depth);
  if (value.isNone()) {
    bytes.put(Tag::kNone);
  } else if (value.isBool()) {
    bytes.put(value.toBool() ? Tag::kTrue : Tag::kFalse);
  } else if (value.isInt()) {
    bytes.put(Tag::kInt);
    bytes.put(value.toInt());
  } else if (value.isDouble()) {
    bytes.put(Tag::kDouble);
    bytes.put(value.toDouble());
  } else if (value.isString()) {
    bytes.put(Tag::kString);
    bytes.put_text(value.toStringView());
  } else if (value.isTensor()) {
    write_tensor(value.toTensor(), bytes, context);
  } else if (value.isList()) {
    const auto list = value.toListRef();
    const auto type = value.toList().elementType();
    const bool ints = type->kind() == c10::TypeKind::IntType;
    const bool doubles = type->kind() == c10::TypeKind::FloatType;
    bytes.put(ints ? Tag::kInts : doubles ? Tag::kDoubles : Tag::kList);
    if (!ints && !doubles) write_type(*type, bytes);
    bytes.put(static_cast<std::uint32_t>(list.size()));
    for (const c10::IValue& element : list) {
      if (ints) {
        bytes.put(element.toInt());
      } else if (doubles) {
        bytes.put(element.toDouble());
      } else {
        write_nested(element, bytes, context, depth + 1);
      }
    }
  } else if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    bytes.put(Tag::kDict);
    write_type(*dict.keyType(), bytes);
    write_type(*dict.valueType(), bytes);
    bytes.put(static_cast<std::uint32_t>(dict.size()));
    for (const auto& entry : dict) {
      write_nested(entry.key(), bytes, context, depth + 1);
      write_nested(entry.value(), bytes, context, depth + 1);
    }
  } else if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    bytes.put(Tag::kTuple);
    bytes.put(static_cast<std::uint32_t>(elements.size()));
    for (const c10::IValue& element : elements) write_nested(element, bytes, context, depth + 1);
  } else if (value.isRRef() && context.name_rref) {
    bytes.put(Tag::kRRef);
    write_key(context.name_rref(value), bytes);
  } else {
    throw UsageError(concat("a value of type ", value.tagKind(),
                            " cannot be sent; keep it where it is and send an RRef to it"));
  }
}

// As many elements as are said to follow cannot be more than the bytes that are left.
std::uint32_t take_count(ByteReader& bytes, std::size_t bytes_each) {
  const auto count = bytes.take<std::uint32_t>();
  if (count > bytes.left() / bytes_each) {
    throw UsageError(concat("it promises ", count, " elements and has ", bytes.left(), " bytes"));
  }
  return count;
}

std::vector<std::int64_t> read_sizes(ByteReader& bytes) {
  const int dimensions = bytes.take<std::uint8_t>();
  if (dimensions > kMostTensorDimensions)
    throw UsageError(concat("a tensor of ", dimensions, " dimensions"));
  std::vector<std::int64_t> sizes;
  std::int64_t product = 1;
  for (int i = 0; i < dimensions; ++i) {
    const auto size = bytes.take<std::int64_t>();
    // Also where another size is 0: strides must not overflow.
    if (size < 0 ||
        (size > 0 && product > std::numeric_limits<std::int32_t>::max() * 1024LL / size)) {
      throw UsageError(concat("a tensor with a dimension of size ", size));
    }
    product *= std::max<std::int64_t>(size, 1);
    sizes.push_back(size);
  }
  return sizes;
}

at::Tensor read_inline_tensor(ByteReader& bytes) {
  const TensorHead head = read_head(bytes);
  const std::string_view elements = bytes.take_bytes(head.size_bytes);
  const at::Tensor tensor = head.make();
  if (head.size_bytes > 0) std::memcpy(tensor.mutable_data_ptr(), elements.data(), head.size_bytes);
  return tensor;
}

c10::IValue read_nested(ByteReader& bytes, const ValueContext& context, int depth);

at::Tensor read_sparse_tensor(ByteReader& bytes, const ValueContext& context, int depth) {
  const auto sizes = read_sizes(bytes);
  const c10::IValue indices = read_nested(bytes, context, depth + 1);
  const c10::IValue values = read_nested(bytes, context, depth + 1);
  if (!indices.isTensor() || !values.isTensor())
    throw UsageError("a sparse tensor without its parts");
  try {
    // That every index lies within the sizes: without it whoever adds it up writes elsewhere.
    at::_validate_sparse_coo_tensor_args(indices.toTensor(), values.toTensor(), sizes);
    return at::sparse_coo_tensor(indices.toTensor(), values.toTensor(), sizes);
  } catch (const c10::Error& error) {
    throw UsageError(concat("a sparse tensor: ", error.what_without_backtrace()));
  }
}

void check_element(const c10::IValue& element, const c10::Type& type) {
  if (!fits(element, type)) {
    throw UsageError(concat("a ", element.tagKind(), " among values of ", type.str()));
  }
}

c10::IValue read_list(ByteReader& bytes, const ValueContext& context, int depth) {
  const c10::TypePtr type = read_type(bytes);
  const auto count = take_count(bytes, 1);
  c10::impl::GenericList list(type);
  for (std::uint32_t i = 0; i < count; ++i) {
    c10::IValue element = read_nested(bytes, context, depth + 1);
    check_element(element, *type);
    list.emplace_back(std::move(element));
  }
  return list;
}

c10::IValue read_dict(ByteReader& bytes, const ValueContext& context, int depth) {
  const c10::TypePtr key_type = read_type(bytes);
  const c10::TypePtr value_type = read_type(bytes);
  const auto count = take_count(bytes, 2);
  c10::impl::GenericDict dict(key_type, value_type);
  for (std::uint32_t i = 0; i < count; ++i) {
    c10::IValue key = read_nested(bytes, context, depth + 1);
    if (!key.isInt() && !key.isString() && !key.isBool() && !key.isDouble()) {
      throw UsageError(concat("a dict with a key of type ", key.tagKind()));
    }
    c10::IValue value = read_nested(bytes, context, depth + 1);
    check_element(key, *key_type);
    check_element(value, *value_type);
    dict.insert_or_assign(std::move(key), std::move(value));
  }
  return dict;
}

template <class Number>
c10::IValue read_numbers(ByteReader& bytes) {
  const auto count = take_count(bytes, sizeof(Number));
  c10::List<Number> list;
  list.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) list.push_back(bytes.take<Number>());
  return list;
}

c10::IValue read_nested(ByteReader& bytes, const ValueContext& context, int depth) {
  check_depth(depth);
  const auto tag = bytes.take<Tag>();
  switch (tag) {
    case Tag::kNone:
      return {};
    case Tag::kFalse:
    case Tag::kTrue:
      return tag == Tag::kTrue;
    case Tag::kInt:
      return bytes.take<std::int64_t>();
    case Tag::kDouble:
      return bytes.take<double>();
    case Tag::kString:
      return std::string(bytes.take_text());
    case Tag::kTensor: {
      const auto index = bytes.take<std::uint32_t>();
      if (index >= context.tensors.size()) {
        throw UsageError(concat("it names tensor ", index, " of ", context.tensors.size()));
      }
      return context.tensors[index];
    }
    case Tag::kInlineTensor:
      return read_inline_tensor(bytes);
    case Tag::kSparseTensor:
      return read_sparse_tensor(bytes, context, depth);
    case Tag::kUndefinedTensor:
      return at::Tensor();
    case Tag::kList:
      return read_list(bytes, context, depth);
    case Tag::kInts:
      return read_numbers<std::int64_t>(bytes);
    case Tag::kDoubles:
      return read_numbers<double>(bytes);
    case Tag::kDict:
      return read_dict(bytes, context, depth);
    case Tag::kTuple: {
      std::vector<c10::IValue> elements;
      for (auto count = take_count(bytes, 1); count > 0; --count) {
        elements.push_back(read_nested(bytes, context, depth + 1));
      }
      return c10::ivalue::Tuple::create(std::move(elements));
    }
    case Tag::kRRef: {
      const RRefKey key = read_key(bytes);
      if (!context.make_rref) throw UsageError("an RRef where none can be");
      return context.make_rref(key);
    }
  }
  throw UsageError(concat("it has a value of kind ", static_cast<int>(tag)));
}

}  // namespace

bool is_sent(at::ScalarType dtype) {
  return at::isFloatingType(dtype) || at::isComplexType(dtype) ||
         at::isIntegralType(dtype, /*includeBool=*/true);
}

void write_head(const at::Tensor& tensor, ByteWriter& bytes) {
  bytes.put(static_cast<std::uint8_t>(tensor.scalar_type()));
  bytes.put(static_cast<std::uint8_t>(tensor.requires_grad()));
  write_sizes(tensor, bytes);
}

TensorHead read_head(ByteReader& bytes) {
  TensorHead head{.dtype = static_cast<at::ScalarType>(bytes.take<std::uint8_t>())};
  if (!is_sent(head.dtype)) {
    throw UsageError(concat("a tensor of dtype number ", static_cast<int>(head.dtype)));
  }
  head.requires_grad = bytes.take<std::uint8_t>() != 0;
  if (head.requires_grad && at::isIntegralType(head.dtype, /*includeBool=*/true)) {
    throw UsageError(concat("a tensor of ", head.dtype, " that requires a gradient"));
  }
  head.sizes = read_sizes(bytes);
  head.size_bytes = c10::elementSize(head.dtype);
  for (const auto size : head.sizes) head.size_bytes *= static_cast<std::uint64_t>(size);
  return head;
}

at::Tensor TensorHead::make() const {
  try {
    return at::empty(sizes, at::TensorOptions(dtype)).set_requires_grad(requires_grad);
  } catch (const c10::Error& error) {
    throw UsageError(concat("a tensor that cannot be: ", error_text(error)));
  }
}

at::Tensor TensorHead::make(std::byte* elements, std::function<void()> give_back) const {
  // As any other tensor: one that grows moves to memory of the usual allocator.
  return at::for_blob(elements, sizes)
      .deleter([give_back = std::move(give_back)](void*) { give_back(); })
      .options(at::TensorOptions(dtype))
      .resizeable_storage()
      .allocator(c10::GetCPUAllocator())
      .make_tensor()
      .set_requires_grad(requires_grad);
}

void write_key(const RRefKey& key, ByteWriter& bytes) {
  bytes.put(key.owner);
  bytes.put(key.creator);
  bytes.put(key.number);
}

RRefKey read_key(ByteReader& bytes) {
  RRefKey key;
  key.owner = bytes.take<std::int32_t>();
  key.creator = bytes.take<std::int32_t>();
  key.number = bytes.take<std::int64_t>();
  return key;
}

void write_value(const c10::IValue& value, ByteWriter& bytes, ValueContext& context) {
  write_nested(value, bytes, context, 0);
}

c10::IValue read_value(ByteReader& bytes, const ValueContext& context) {
  return read_nested(bytes, context, 0);
}

}  // namespace lockstep::rpc::inline internal
