#include "lockstep/comm/internal/call_signature.h"

#include <cstring>

#include <c10/core/ScalarType.h>

#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

CallSignature::CallSignature(const char* operation_name) {
  const std::size_t length = std::strlen(operation_name);
  LOCKSTEP_ASSERT(length < operation.size());
  std::memcpy(operation.data(), operation_name, length);
}

CallSignature& CallSignature::of(const at::Tensor& tensor) {
  numel = tensor.numel();
  return of(tensor.scalar_type());
}

CallSignature& CallSignature::of(at::ScalarType type) {
  dtype = static_cast<std::int64_t>(type);
  return *this;
}

CallSignature& CallSignature::with(ReduceOp op) {
  reduce_op = static_cast<std::int64_t>(op);
  return *this;
}

CallSignature& CallSignature::at_root(int rank) {
  root = rank;
  return *this;
}

CallSignature& CallSignature::named(const std::string& its_name) {
  LOCKSTEP_ASSERT(its_name.size() < name.size());
  std::memcpy(name.data(), its_name.data(), its_name.size());
  return *this;
}

std::string describe(const CallSignature& call) {
  std::string text = call.operation.data();
  if (call.name[0] != 0) text += concat(" '", call.name.data(), "'");
  if (call.dtype != CallSignature::kNone) {
    const auto [name, legacy_name] = c10::getDtypeNames(static_cast<at::ScalarType>(call.dtype));
    text += " of ";
    if (call.numel != CallSignature::kNone) text += concat(call.numel, " ");
    text += name;
  }
  if (call.reduce_op != CallSignature::kNone) {
    text += concat(", op ", name_of(static_cast<ReduceOp>(call.reduce_op)));
  }
  if (call.root != CallSignature::kNone) text += concat(", root ", call.root);
  return text;
}

std::optional<std::string> find_difference(std::span<const CallSignature> calls) {
  for (std::size_t rank = 1; rank < calls.size(); ++rank) {
    if (calls[rank] == calls[0]) continue;
    return concat("rank ", rank, " called ", describe(calls[rank]), ", but rank 0 ",
                  describe(calls[0]));
  }
  return std::nullopt;
}

std::optional<std::string> find_difference(std::span<const PairCounts> counts) {
  for (std::size_t source = 0; source < counts.size(); ++source) {
    for (std::size_t target = 0; target < counts.size(); ++target) {
      const auto sent = counts[source].sent[target];
      const auto expected = counts[target].received[source];
      if (sent == expected) continue;
      return concat("rank ", source, " sends ", sent, " elements to rank ", target,
                    ", which expects ", expected);
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::inline internal
