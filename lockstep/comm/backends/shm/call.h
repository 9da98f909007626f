#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/comm/kernels/element.h"
#include "lockstep/comm/reduce_op.h"

namespace lockstep::shm {

/// Kind of a collective.
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

/// What all ranks of a group must pass equally to a collective. 16 bytes, to fit in an entry.
struct Call {
  CallKind kind = CallKind::kBarrier;
  Element element = Element::kUint8;
  ReduceOp op = ReduceOp::kSum;  ///< kSum if nothing is reduced
  /// All ranks promise that their tensors are in the group's shared memory.
  bool in_shared_memory : 1 = false;
  /// The inputs have dtype `input_element`, which differs from the results'.
  bool converts : 1 = false;
  Element input_element = Element::kUint8;
  std::int8_t root = -1;  ///< source or target; -1: none
  /// Hash of the call's name, 40 bits in two parts; 0: no name.
  std::uint16_t label_high = 0;
  std::uint64_t label_low : 24 = 0;
  std::uint64_t elements : 40 = 0;  ///< of each rank's part; 0 if ranks may differ

  void set_name(std::string_view name);
  bool has_name() const { return label_high != 0; }

  friend bool operator==(const Call&, const Call&) = default;
};

/// Start of a call's name, padded with zeros; as long as ProcessGroup allows.
using CallName = std::array<char, 24>;

CallName call_name(std::string_view name);

/// "all_reduce"
const char* name(CallKind kind);

/// "all_reduce (SUM) of 12 float32 elements", and with a name "… named 'loss'".
std::string describe(const Call& call, const CallName& name = {});

}  // namespace lockstep::shm
