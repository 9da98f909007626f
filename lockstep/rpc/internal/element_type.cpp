#include "lockstep/rpc/internal/element_type.h"

#include <algorithm>
#include <array>

#include "lockstep/base/internal/concat.h"

namespace lockstep::rpc::inline internal {
namespace {

constexpr int kDeepestType = 8;

enum class TypeCode : std::uint8_t {
  kAny,
  kTensor,
  kInt,
  kFloat,
  kBool,
  kString,
  kNone,
  kOptional,
  kList,
  kDict,
  kTuple,
};

// Those without others in them, by code.
const std::array<c10::TypePtr, 7>& simple_types() {
  static const std::array<c10::TypePtr, 7> types{
      c10::AnyType::get(),  c10::TensorType::get(), c10::IntType::get(), c10::FloatType::get(),
      c10::BoolType::get(), c10::StringType::get(), c10::NoneType::get()};
  return types;
}

TypeCode code_of(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      return TypeCode::kOptional;
    case c10::TypeKind::ListType:
      return TypeCode::kList;
    case c10::TypeKind::DictType:
      return TypeCode::kDict;
    case c10::TypeKind::TupleType:
      return TypeCode::kTuple;
    default:
      break;
  }
  const auto found = std::ranges::find(simple_types(), type.kind(), &c10::Type::kind);
  return found == simple_types().end() ? TypeCode::kAny
                                       : static_cast<TypeCode>(found - simple_types().begin());
}

c10::TypePtr read_nested_type(ByteReader& bytes, int depth) {
  if (depth > kDeepestType) throw UsageError(concat("types nested deeper than ", kDeepestType));
  const auto code = bytes.take<TypeCode>();
  switch (code) {
    default:
      if (static_cast<std::size_t>(code) < simple_types().size()) {
        return simple_types()[static_cast<std::size_t>(code)];
      }
      throw UsageError(concat("a type of kind ", static_cast<int>(code)));
    case TypeCode::kOptional: {
      auto contained = read_nested_type(bytes, depth + 1);
      const auto kind = contained->kind();
      if (kind == c10::TypeKind::NoneType || kind == c10::TypeKind::AnyType) {
        throw UsageError(concat("an optional ", contained->str()));
      }
      return c10::OptionalType::create(std::move(contained));
    }
    case TypeCode::kList:
      return c10::ListType::create(read_nested_type(bytes, depth + 1));
    case TypeCode::kDict: {
      auto key = read_nested_type(bytes, depth + 1);
      const auto kind = key->kind();
      if (kind != c10::TypeKind::IntType && kind != c10::TypeKind::StringType &&
          kind != c10::TypeKind::BoolType && kind != c10::TypeKind::FloatType) {
        throw UsageError(concat("a dict with keys of ", key->str()));
      }
      return c10::DictType::create(std::move(key), read_nested_type(bytes, depth + 1));
    }
    case TypeCode::kTuple: {
      std::vector<c10::TypePtr> elements(bytes.take<std::uint8_t>());
      for (auto& element : elements) element = read_nested_type(bytes, depth + 1);
      return c10::TupleType::create(std::move(elements));
    }
  }
}

}  // namespace

void write_type(const c10::Type& type, ByteWriter& bytes) {
  const TypeCode code = code_of(type);
  bytes.put(code);
  if (code < TypeCode::kOptional) return;
  if (code == TypeCode::kTuple) {
    const std::size_t elements = type.containedTypes().size();
    if (elements > 255)
      throw UsageError(concat("a tuple type of ", elements, " elements; at most 255"));
    bytes.put(static_cast<std::uint8_t>(elements));
  }
  for (const auto& contained : type.containedTypes()) write_type(*contained, bytes);
}

c10::TypePtr read_type(ByteReader& bytes) {
  return read_nested_type(bytes, 0);
}

bool fits(const c10::IValue& value, const c10::Type& type) {
  // Not by value.type(), which throws for an undefined tensor.
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return value.isTensor();
    case c10::TypeKind::IntType:
      return value.isInt();
    case c10::TypeKind::FloatType:
      return value.isDouble();
    case c10::TypeKind::BoolType:
      return value.isBool();
    case c10::TypeKind::StringType:
      return value.isString();
    case c10::TypeKind::NoneType:
      return value.isNone();
    case c10::TypeKind::OptionalType:
      return value.isNone() || fits(value, *type.containedType(0));
    case c10::TypeKind::ListType:
      return value.isList() && *value.toList().elementType() == *type.containedType(0);
    case c10::TypeKind::DictType:
      return value.isGenericDict() && *value.toGenericDict().keyType() == *type.containedType(0) &&
             *value.toGenericDict().valueType() == *type.containedType(1);
    case c10::TypeKind::TupleType: {
      if (!value.isTuple()) return false;
      const auto& elements = value.toTupleRef().elements();
      if (elements.size() != type.containedTypes().size()) return false;
      for (std::size_t i = 0; i < elements.size(); ++i) {
        if (!fits(elements[i], *type.containedType(i))) return false;
      }
      return true;
    }
    default:
      return true;
  }
}

}  // namespace lockstep::rpc::inline internal
