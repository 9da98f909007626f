#pragma once

#include <cstdint>

namespace lockstep::inline internal {

/// The opcodes of Python's pickle protocol 2 that files of torch.save and of Lockstep contain.
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
};

}  // namespace lockstep::inline internal
