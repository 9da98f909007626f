#pragma once

#include <cstdint>

namespace lockstep::inline internal {

/// Opcodes of Python's pickle: those in files of torch.save and Lockstep (protocol 2), and in the
/// metadata of torch.distributed.checkpoint (Python's default protocol, 4 or 5).
enum class PickleOpcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8A,
  kBinFloat = 'G',
  kNone = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinUnicode = 'X',
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  kGlobal = 'c',
  kReduce = 'R',
  kBuild = 'b',
  kBinPersId = 'Q',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kProto = 0x80,
  kNewObject = 0x81,
  kShortBinUnicode = 0x8C,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

}  // namespace lockstep::inline internal
