#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::inline internal {

/// Writes JSON into memory of fixed size, async-signal-safe. What does not fit is dropped; rewind()
/// to a position before it keeps the JSON well-formed.
class CrashText {
 public:
  /// Appends text unchanged.
  CrashText& raw(std::string_view text) noexcept;
  /// Appends the content of a JSON string, escaped. Bytes that are not UTF-8 become '?'.
  CrashText& text(std::string_view text) noexcept;
  CrashText& decimal(std::uint64_t number) noexcept;
  /// "0x1f"
  CrashText& hexadecimal(std::uint64_t number) noexcept;

  /// Whether everything so far has fitted.
  bool fits() const noexcept { return !overflowed_; }
  std::size_t size() const noexcept { return size_; }
  /// Back to an earlier size() at which everything fitted.
  void rewind(std::size_t size) noexcept;
  std::string_view view() const noexcept { return {bytes_.data(), size_}; }

 private:
  std::array<char, 1 << 16> bytes_{};
  std::size_t size_ = 0;
  bool overflowed_ = false;
};

/// Number of bytes of the UTF-8 character at the start of the text; 0: it is none.
std::size_t utf8_length(std::string_view text) noexcept;

}  // namespace lockstep::inline internal
