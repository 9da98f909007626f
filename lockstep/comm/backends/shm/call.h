#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/comm/kernels/element.h"
#include "lockstep/comm/reduce_op.h"

namespace lockstep::shm {

enum class CallKind : std::uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
};

/// What all ranks of a group must agree on when they call a collective.
struct Call {
  CallKind kind = CallKind::kBarrier;
  Element element = Element::kUint8;
  ReduceOp op = ReduceOp::kSum;  ///< kSum where nothing is reduced
  /// All ranks promise that their tensors lie in the group's shared memory.
  bool in_shared_memory = false;
  /// Of the inputs, where it is another than that of the results.
  std::optional<Element> input_element = std::nullopt;
  std::int16_t root = -1;      ///< source or target; -1 where there is none
  std::uint64_t elements = 0;  ///< of each rank's part; 0 where ranks may differ

  friend bool operator==(const Call&, const Call&) = default;
};

/// "all_reduce"
const char* name(CallKind kind);

/// "all_reduce (SUM) of 12 float32 elements"
std::string describe(const Call& call);

}  // namespace lockstep::shm
