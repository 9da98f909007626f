#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace lockstep::inline internal {

/// Rows from the top, pixels from the left, a byte a channel: 1 grey, 3 red, green and blue, 4 with
/// opacity.
struct ImagePixels {
  std::int64_t width = 0;
  std::int64_t height = 0;
  int channels = 3;
  std::span<const std::uint8_t> bytes = {};
};

/// The image as a PNG file. Pure. Errors: UsageError for one without pixels, of more than 2^28
/// bytes or another number of channels.
std::string encode_png(const ImagePixels& image);

}  // namespace lockstep::inline internal
