#include "lockstep/comm/backends/shm/call.h"

#include <algorithm>
#include <array>
#include <functional>

#include "lockstep/base/internal/concat.h"

namespace lockstep::shm {
namespace {

bool reduces(CallKind kind) {
  return kind == CallKind::kAllReduce || kind == CallKind::kReduce ||
         kind == CallKind::kReduceScatter;
}

// " (SUM) of 12 float32 elements"
std::string describe_tensors(const Call& call) {
  std::string text;
  if (reduces(call.kind)) text += concat(" (", name_of(call.op), ")");
  if (call.kind != CallKind::kAllToAll) text += concat(" of ", std::uint64_t{call.elements});
  text += concat(" ", element_name(call.element), " elements");
  if (call.converts) text += concat(" from ", element_name(call.input_element));
  if (call.root >= 0) text += concat(" with root ", int{call.root});
  if (call.in_shared_memory) text += " in shared memory";
  return text;
}

}  // namespace

void Call::set_name(std::string_view name) {
  const std::uint64_t hash = std::hash<std::string_view>()(name);
  label_high = static_cast<std::uint16_t>(hash % 0xffff + 1);
  label_low = hash >> 40;
}

CallName call_name(std::string_view name) {
  CallName result{};
  const std::size_t length = std::min(name.size(), result.size() - 1);
  std::copy_n(name.begin(), length, result.begin());
  return result;
}

const char* name(CallKind kind) {
  // Static, or each call would build the array on the stack.
  static constexpr std::array kNames = {"all_reduce", "reduce",         "broadcast",
                                        "all_gather", "reduce_scatter", "all_to_all",
                                        "gather",     "scatter",        "barrier"};
  const auto number = static_cast<std::size_t>(kind);
  return number < kNames.size() ? kNames[number] : "?";  // read from another rank's memory
}

std::string describe(const Call& call, const CallName& name) {
  std::string text = shm::name(call.kind);
  if (call.kind != CallKind::kBarrier) text += describe_tensors(call);
  if (call.has_name()) text += concat(" named '", name.data(), "'");
  return text;
}

}  // namespace lockstep::shm
