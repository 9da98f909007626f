#pragma once

#include <array>
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
  std::int8_t root = -1;  ///< source or target; -1 where there is none
  /// Of what the caller has named the call, 40 bits of a hash in two parts; 0 where it has not.
  std::uint16_t label_high = 0;
  std::uint64_t label_low : 24 = 0;
  std::uint64_t elements : 40 = 0;  ///< of each rank's part; 0 where ranks may differ

  void set_name(std::string_view name);
  bool has_name() const { return label_high != 0; }

  friend bool operator==(const Call&, const Call&) = default;
};

/// The beginning of a call's name, ended by zeros; as long as ProcessGroup allows.
using CallName = std::array<char, 24>;

CallName call_name(std::string_view name);

/// "all_reduce"
const char* name(CallKind kind);

/// "all_reduce (SUM) of 12 float32 elements", and with a name "… named 'loss'".
std::string describe(const Call& call, const CallName& name = {});

}  // namespace lockstep::shm
