#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

/// What all ranks of a group must agree on when they call a collective. 16 bytes: an entry has room
/// for no more.
struct Call {
  CallKind kind = CallKind::kBarrier;
  Element element = Element::kUint8;
  ReduceOp op = ReduceOp::kSum;  ///< kSum where nothing is reduced
  /// All ranks promise that their tensors lie in the group's shared memory.
  bool in_shared_memory : 1 = false;
  /// The inputs are of `input_element`, another than the results'.
  bool converts : 1 = false;
  Element input_element = Element::kUint8;
  std::int8_t root = -1;       ///< source or target; -1 where there is none
  std::uint16_t label = 0;     ///< of what the caller has named the call; 0 where it has not
  std::uint64_t elements = 0;  ///< of each rank's part; 0 where ranks may differ

  friend bool operator==(const Call&, const Call&) = default;
};

/// Of a name, 1 or more.
std::uint16_t label_of(std::string_view name);

/// "all_reduce"
const char* name(CallKind kind);

/// "all_reduce (SUM) of 12 float32 elements"
std::string describe(const Call& call);

}  // namespace lockstep::shm
