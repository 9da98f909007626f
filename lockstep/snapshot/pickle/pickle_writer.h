#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/pickle/pickle_opcodes.h"

namespace lockstep::inline internal {

/// Writes a pickle of protocol 2: values one after the other, as operations on the pickle machine's
/// stack.
class PickleWriter {
 public:
  PickleWriter() { op(PickleOpcode::kProto).raw<std::uint8_t>(2); }

  PickleWriter& op(PickleOpcode code) {
    text_.push_back(static_cast<char>(code));
    return *this;
  }

  template <class Integer>
  PickleWriter& raw(Integer value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }

  PickleWriter& global(std::string_view module, std::string_view name) {
    op(PickleOpcode::kGlobal);
    text_ += concat(module, "\n", name, "\n");
    return *this;
  }

  PickleWriter& string(std::string_view value) {
    op(PickleOpcode::kBinUnicode).raw(static_cast<std::uint32_t>(value.size()));
    text_ += value;
    return *this;
  }

  PickleWriter& number(std::uint64_t value) {
    if (value <= INT32_MAX) return op(PickleOpcode::kBinInt).raw(static_cast<std::int32_t>(value));
    return op(PickleOpcode::kLong1).raw<std::uint8_t>(sizeof(value)).raw(value);
  }

  PickleWriter& numbers(const std::vector<std::int64_t>& values) {
    op(PickleOpcode::kMark);
    for (const std::int64_t value : values) number(static_cast<std::uint64_t>(value));
    return op(PickleOpcode::kTuple);
  }

  PickleWriter& size(const std::vector<std::int64_t>& values) {
    return global("torch", "Size")
        .numbers(values)
        .op(PickleOpcode::kTuple1)
        .op(PickleOpcode::kReduce);
  }

  PickleWriter& none() { return op(PickleOpcode::kNone); }

  /// Creates an object of a class; the value written between this and set_state() is its state.
  PickleWriter& object(std::string_view module, std::string_view name) {
    return global(module, name).op(PickleOpcode::kEmptyTuple).op(PickleOpcode::kNewObject);
  }
  PickleWriter& set_state() { return op(PickleOpcode::kBuild); }

  PickleWriter& dict() { return op(PickleOpcode::kEmptyDict).op(PickleOpcode::kMark); }
  PickleWriter& end_dict() { return op(PickleOpcode::kSetItems); }

  std::string finish() {
    op(PickleOpcode::kStop);
    return std::move(text_);
  }

 private:
  std::string text_;
};

/// Writes a contiguous tensor of these sizes over the storage `key`, as torch.save does; for every
/// dtype that the unpickler reads.
void put_tensor(PickleWriter& text, c10::ScalarType dtype, const std::vector<std::int64_t>& shape,
                std::string_view key);

}  // namespace lockstep::inline internal
