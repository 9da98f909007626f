#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline internal {

/// Writes Protocol Buffers' wire format, as far as event files need it: a sequence of fields, each
/// with its number in the message's .proto file.
class ProtoMessage {
 public:
  ProtoMessage& add_integer(int field, std::int64_t value);
  ProtoMessage& add_double(int field, double value);
  ProtoMessage& add_float(int field, float value);
  /// A string, bytes, or a message within this one.
  ProtoMessage& add_bytes(int field, std::string_view value);
  ProtoMessage& add_message(int field, const ProtoMessage& value) {
    return add_bytes(field, value.bytes());
  }
  /// A repeated double, packed.
  ProtoMessage& add_doubles(int field, const std::vector<double>& values);

  const std::string& bytes() const { return bytes_; }

 private:
  void add_varint(std::uint64_t value);
  void add_key(int field, int wire_type);

  std::string bytes_;
};

/// Appends the number's bytes, lowest first.
template <std::unsigned_integral Number>
void append_little_endian(std::string& bytes, Number value) {
  for (std::size_t i = 0; i < sizeof value; ++i) {
    bytes += static_cast<char>((value >> (8 * i)) & 0xFFU);
  }
}

}  // namespace lockstep::inline internal
