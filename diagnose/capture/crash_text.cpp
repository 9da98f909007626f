#include "diagnose/capture/crash_text.h"

#include <algorithm>
#include <cstring>

namespace lockstep::inline internal {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

}  // namespace

CrashText& CrashText::raw(std::string_view text) noexcept {
  overflowed_ = overflowed_ || text.size() > bytes_.size() - size_;
  if (overflowed_) return *this;
  std::memcpy(bytes_.data() + size_, text.data(), text.size());
  size_ += text.size();
  return *this;
}

CrashText& CrashText::text(std::string_view text) noexcept {
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text.front());
    std::size_t length = 1;
    if (byte == '"' || byte == '\\') {
      raw("\\").raw(text.substr(0, 1));
    } else if (byte == '\n') {
      raw("\\n");
    } else if (byte < 0x20) {
      raw("\\u00").raw(kDigits.substr(byte >> 4, 1)).raw(kDigits.substr(byte & 15, 1));
    } else if (length = utf8_length(text); length > 0) {
      raw(text.substr(0, length));
    } else {
      raw("?");
      length = 1;
    }
    text.remove_prefix(length);
  }
  return *this;
}

CrashText& CrashText::decimal(std::uint64_t number) noexcept {
  std::array<char, 20> digits{};
  std::size_t first = digits.size();
  do {
    digits[--first] = kDigits[number % 10];
    number /= 10;
  } while (number > 0);
  return raw({digits.data() + first, digits.size() - first});
}

CrashText& CrashText::hexadecimal(std::uint64_t number) noexcept {
  std::array<char, 16> digits{};
  std::size_t first = digits.size();
  do {
    digits[--first] = kDigits[number % 16];
    number /= 16;
  } while (number > 0);
  return raw("0x").raw({digits.data() + first, digits.size() - first});
}

void CrashText::rewind(std::size_t size) noexcept {
  size_ = std::min(size, size_);
  overflowed_ = false;
}

std::size_t utf8_length(std::string_view text) noexcept {
  if (text.empty()) return 0;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  // No longer forms than needed, no halves of UTF-16's pairs, nothing above U+10FFFF.
  std::size_t length = 0;
  unsigned char least = 0x80;
  unsigned char most = 0xbf;
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) least = 0xa0;
    if (lead == 0xed) most = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) least = 0x90;
    if (lead == 0xf4) most = 0x8f;
  }
  if (length == 0 || text.size() < length || byte(1) < least || byte(1) > most) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return length;
}

}  // namespace lockstep::inline internal
