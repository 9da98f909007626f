#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::rpc::inline internal {

static_assert(std::endian::native == std::endian::little, "messages are little-endian");

/// Appends numbers and text to a message.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<char>& bytes) : bytes_(bytes) {}

  template <class Number>
  requires std::is_arithmetic_v<Number> || std::is_enum_v<Number>
  void put(Number number) { put_bytes(&number, sizeof(number)); }
  void put_text(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    put_bytes(text.data(), text.size());
  }
  void put_bytes(const void* data, std::size_t size) {
    const auto* first = static_cast<const char*>(data);
    bytes_.insert(bytes_.end(), first, first + size);
  }

 private:
  std::vector<char>& bytes_;
};

/// Reads what ByteWriter wrote, from untrusted bytes.
/// Lifetime: the bytes must outlive it.
/// Errors: UsageError if fewer bytes are left than requested.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  std::size_t left() const { return rest_.size(); }

  template <class Number>
  requires std::is_arithmetic_v<Number> || std::is_enum_v<Number> Number take() {
    Number number;
    std::memcpy(&number, take_bytes(sizeof(number)).data(), sizeof(number));
    return number;
  }
  std::string_view take_text() { return take_bytes(take<std::uint32_t>()); }
  std::string_view take_bytes(std::size_t size) {
    if (size > rest_.size()) throw UsageError("it ends in the middle of a value");
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

 private:
  std::string_view rest_;
};

}  // namespace lockstep::rpc::inline internal
