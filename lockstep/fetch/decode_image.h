#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

namespace lockstep {

/// Pixels row by row, each red, green, blue.
struct RgbImage {
  std::size_t width = 0;
  std::size_t height = 0;
  std::vector<std::uint8_t> pixels;
};

/// Decodes a PNG or JPEG file; a grey image gets three equal channels, transparency is dropped. The
/// same file gives the same pixels on every machine. Errors: CorruptFile naming the file;
/// SystemError when it cannot be read.
RgbImage decode_image(const std::filesystem::path& path);

}  // namespace lockstep
