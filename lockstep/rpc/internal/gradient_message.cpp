#include "lockstep/rpc/internal/gradient_message.h"

#include <map>

#include "lockstep/rpc/internal/byte_stream.h"
#include "lockstep/snapshot/pickle/pickle_opcodes.h"

namespace lockstep::rpc::inline internal {
namespace {

using Opcode = PickleOpcode;

constexpr std::string_view kTensorById = "torch.jit._pickle\nbuild_tensor_from_id\n";

class PickleReader {
 public:
  explicit PickleReader(std::string_view pickle) : bytes_(pickle) {
    expect(Opcode::kProto);
    if (bytes_.take<std::uint8_t>() != 2) refuse();
  }

  Opcode next() { return bytes_.take<Opcode>(); }
  void expect(Opcode opcode) {
    if (next() != opcode) refuse();
  }
  void expect_end() {
    expect(Opcode::kStop);
    if (bytes_.left() > 0) refuse();
  }

  /// One that begins with `opcode`, which has been taken.
  std::int64_t integer(Opcode opcode) {
    switch (opcode) {
      case Opcode::kBinInt1:
        return bytes_.take<std::uint8_t>();
      case Opcode::kBinInt2:
        return bytes_.take<std::uint16_t>();
      case Opcode::kBinInt:
        return bytes_.take<std::int32_t>();
      case Opcode::kLong1:
        if (bytes_.take<std::uint8_t>() != sizeof(std::int64_t)) refuse();
        return bytes_.take<std::int64_t>();
      default:
        refuse();
    }
  }

  /// The index of a tensor: build_tensor_from_id(index). What was written once, that function and
  /// each tensor, is later named by its number.
  std::size_t tensor(Opcode opcode) {
    if (opcode == Opcode::kGlobal) {
      if (bytes_.take_bytes(kTensorById.size()) != kTensorById) refuse();
      remember(kFunction);
    } else {
      const std::uint32_t number =
          opcode == Opcode::kBinGet ? bytes_.take<std::uint8_t>() : bytes_.take<std::uint32_t>();
      const auto known = known_.find(number);
      if (known == known_.end()) refuse();
      if (known->second != kFunction) return static_cast<std::size_t>(known->second);
    }
    expect(Opcode::kMark);
    const std::int64_t index = integer(next());
    if (index < 0) refuse();
    expect(Opcode::kTuple);
    expect(Opcode::kReduce);
    remember(index);
    return static_cast<std::size_t>(index);
  }

  [[noreturn]] static void refuse() {
    throw UsageError("it is not of the form that distributed autograd gives its messages");
  }

 private:
  static constexpr std::int64_t kFunction = -1;

  void remember(std::int64_t what) {
    const Opcode opcode = next();
    if (opcode == Opcode::kBinPut) {
      known_[bytes_.take<std::uint8_t>()] = what;
    } else if (opcode == Opcode::kLongBinPut) {
      known_[bytes_.take<std::uint32_t>()] = what;
    } else {
      refuse();
    }
  }

  std::map<std::uint32_t, std::int64_t>
      known_;  ///< what a number names: a tensor's index, kFunction
  ByteReader bytes_;
};

}  // namespace

GradientMessage read_gradient_message(std::string_view pickle) {
  PickleReader reader(pickle);
  GradientMessage message;
  reader.expect(Opcode::kMark);
  Opcode opcode = reader.next();
  while (opcode == Opcode::kGlobal || opcode == Opcode::kBinGet || opcode == Opcode::kLongBinGet) {
    message.tensors.push_back(reader.tensor(opcode));
    opcode = reader.next();
  }
  message.context = reader.integer(opcode);
  message.message = reader.integer(reader.next());
  const Opcode retain = reader.next();
  if (retain != Opcode::kNewTrue && retain != Opcode::kNewFalse) PickleReader::refuse();
  message.retain_graph = retain == Opcode::kNewTrue;
  reader.expect(Opcode::kTuple);
  reader.expect_end();
  return message;
}

std::int64_t read_cleanup_message(std::string_view pickle) {
  PickleReader reader(pickle);
  const std::int64_t context = reader.integer(reader.next());
  reader.expect_end();
  return context;
}

}  // namespace lockstep::rpc::inline internal
