#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::inline internal {

/// JSON, written with nothing but what a handler of signals may do: into memory of a fixed size.
/// What does not fit is left out; rewind() to before it keeps the rest well-formed.
class CrashText {
 public:
  /// As it is.
  CrashText& raw(std::string_view text) noexcept;
  /// What stands between the quotes of a JSON string. Bytes that are no UTF-8 become '?'.
  CrashText& text(std::string_view text) noexcept;
  CrashText& decimal(std::uint64_t number) noexcept;
  /// "0x1f"
  CrashText& hexadecimal(std::uint64_t number) noexcept;

  /// All so far has found its place.
  bool fits() const noexcept { return !overflowed_; }
  std::size_t size() const noexcept { return size_; }
  /// Back to a size() at which all fitted.
  void rewind(std::size_t size) noexcept;
  std::string_view view() const noexcept { return {bytes_.data(), size_}; }

 private:
  std::array<char, 1 << 16> bytes_{};
  std::size_t size_ = 0;
  bool overflowed_ = false;
};

/// The number of bytes of the UTF-8 character that the text begins with; 0 where it is none.
std::size_t utf8_length(std::string_view text) noexcept;

}  // namespace lockstep::inline internal
