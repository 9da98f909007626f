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
class PickleText {
 public:
  PickleText() { op(PickleOpcode::kProto).raw<std::uint8_t>(2); }

  PickleText& op(PickleOpcode code) {
    text_.push_back(static_cast<char>(code));
    return *this;
  }

  template <class Integer>
  PickleText& raw(Integer value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }

  PickleText& global(std::string_view module, std::string_view name) {
    op(PickleOpcode::kGlobal);
    text_ += concat(module, "\n", name, "\n");
    return *this;
  }

  PickleText& string(std::string_view value) {
    op(PickleOpcode::kBinUnicode).raw(static_cast<std::uint32_t>(value.size()));
    text_ += value;
    return *this;
  }

  PickleText& number(std::uint64_t value) {
    if (value <= INT32_MAX) return op(PickleOpcode::kBinInt).raw(static_cast<std::int32_t>(value));
    return op(PickleOpcode::kLong1).raw<std::uint8_t>(sizeof(value)).raw(value);
  }

  PickleText& numbers(const std::vector<std::int64_t>& values) {
    op(PickleOpcode::kMark);
    for (const std::int64_t value : values) number(static_cast<std::uint64_t>(value));
    return op(PickleOpcode::kTuple);
  }

  PickleText& size(const std::vector<std::int64_t>& values) {
    return global("torch", "Size")
        .numbers(values)
        .op(PickleOpcode::kTuple1)
        .op(PickleOpcode::kReduce);
  }

  PickleText& none() { return op(PickleOpcode::kNone); }

  /// Creates an object of a class; the value written between this and set_state() is its state.
  PickleText& object(std::string_view module, std::string_view name) {
    return global(module, name).op(PickleOpcode::kEmptyTuple).op(PickleOpcode::kNewObject);
  }
  PickleText& set_state() { return op(PickleOpcode::kBuild); }

  PickleText& dict() { return op(PickleOpcode::kEmptyDict).op(PickleOpcode::kMark); }
  PickleText& end_dict() { return op(PickleOpcode::kSetItems); }

  std::string finish() {
    op(PickleOpcode::kStop);
    return std::move(text_);
  }

 private:
  std::string text_;
};

/// Writes a contiguous tensor of these sizes over the storage `key`, as torch.save does; for every
/// dtype that the unpickler reads.
void put_tensor(PickleText& text, c10::ScalarType dtype, const std::vector<std::int64_t>& shape,
                std::string_view key);

}  // namespace lockstep::inline internal
