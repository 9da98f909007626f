#include "lockstep/rpc/function_binding.h"

#include "lockstep/base/internal/concat.h"

namespace lockstep::rpc::binding {

void refuse_object() {
  throw UsageError("it is no object of the type that the function takes; pass an RRef to one");
}

void refuse_kind(const c10::IValue& value, const char* wanted) {
  throw UsageError(concat("it is of type ", value.tagKind(), ", not ", wanted));
}

void refuse_type(const c10::IValue& value, const c10::Type& wanted) {
  throw UsageError(concat("it is of type ", value.type()->str(), ", not ", wanted.str()));
}

void refuse_range(std::int64_t value, const std::string& least, const std::string& most) {
  throw UsageError(concat(value, " is not within ", least, " to ", most));
}

void refuse_argument(std::size_t index, const UsageError& error) {
  throw UsageError(concat("argument ", index + 1, ": ", error.what()));
}

void refuse_count(std::size_t takes, std::size_t given) {
  throw UsageError(concat("it takes ", takes, " arguments, not ", given));
}

}  // namespace lockstep::rpc::binding
