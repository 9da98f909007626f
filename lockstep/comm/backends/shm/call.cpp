#include "lockstep/comm/backends/shm/call.h"

#include <functional>

#include "lockstep/base/concat.h"

namespace lockstep::shm {
namespace {

bool reduces(CallKind kind) {
  return kind == CallKind::kAllReduce || kind == CallKind::kReduce ||
         kind == CallKind::kReduceScatter;
}

}  // namespace

std::uint16_t label_of(std::string_view name) {
  const std::size_t hash = std::hash<std::string_view>()(name);
  return static_cast<std::uint16_t>(hash % 0xffff + 1);
}

const char* name(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduce:
      return "all_reduce";
    case CallKind::kReduce:
      return "reduce";
    case CallKind::kBroadcast:
      return "broadcast";
    case CallKind::kAllGather:
      return "all_gather";
    case CallKind::kReduceScatter:
      return "reduce_scatter";
    case CallKind::kAllToAll:
      return "all_to_all";
    case CallKind::kGather:
      return "gather";
    case CallKind::kScatter:
      return "scatter";
    case CallKind::kBarrier:
      return "barrier";
  }
  return "?";
}

std::string describe(const Call& call) {
  std::string text = name(call.kind);
  if (reduces(call.kind)) text += concat(" (", reduce_op_name(call.op), ")");
  if (call.kind == CallKind::kBarrier) return text;
  if (call.kind != CallKind::kAllToAll) text += concat(" of ", call.elements);
  text += concat(" ", element_name(call.element), " elements");
  if (call.converts) text += concat(" from ", element_name(call.input_element));
  if (call.root >= 0) text += concat(" with root ", int{call.root});
  if (call.in_shared_memory) text += " in shared memory";
  if (call.label != 0) text += concat(" with a name that has label ", call.label);
  return text;
}

}  // namespace lockstep::shm
