#include "lockstep/record/internal/proto_message.h"

#include <bit>

namespace lockstep::inline internal {
namespace {

constexpr int kVarint = 0;
constexpr int kFixed64 = 1;
constexpr int kLengthDelimited = 2;
constexpr int kFixed32 = 5;

}  // namespace

void ProtoMessage::add_varint(std::uint64_t value) {
  constexpr std::uint64_t kMore = 0x80;
  for (; value >= kMore; value >>= 7) bytes_ += static_cast<char>((value & 0x7F) | kMore);
  bytes_ += static_cast<char>(value);
}

void ProtoMessage::add_key(int field, int wire_type) {
  add_varint((static_cast<std::uint64_t>(field) << 3) | static_cast<std::uint64_t>(wire_type));
}

ProtoMessage& ProtoMessage::add_integer(int field, std::int64_t value) {
  add_key(field, kVarint);
  add_varint(static_cast<std::uint64_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::add_double(int field, double value) {
  add_key(field, kFixed64);
  append_little_endian(bytes_, std::bit_cast<std::uint64_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::add_float(int field, float value) {
  add_key(field, kFixed32);
  append_little_endian(bytes_, std::bit_cast<std::uint32_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::add_bytes(int field, std::string_view value) {
  add_key(field, kLengthDelimited);
  add_varint(value.size());
  bytes_ += value;
  return *this;
}

ProtoMessage& ProtoMessage::add_doubles(int field, const std::vector<double>& values) {
  std::string packed;
  for (const double value : values) {
    append_little_endian(packed, std::bit_cast<std::uint64_t>(value));
  }
  return add_bytes(field, packed);
}

}  // namespace lockstep::inline internal
