#include "lockstep/record/internal/event.h"

// The one place that compiles stb_image_write.
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#define STBI_WRITE_NO_STDIO
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include <stb/stb_image_write.h>
#pragma GCC diagnostic pop

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

std::string encode_png(const ImagePixels& image) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 28;
  const bool has_channels = image.channels == 1 || image.channels == 3 || image.channels == 4;
  const bool is_small = image.width > 0 && image.height > 0 && image.width <= kMostBytes &&
                        image.height <= kMostBytes / image.width / 4;
  if (!has_channels || !is_small ||
      std::ssize(image.bytes) != image.width * image.height * image.channels) {
    throw UsageError(concat("encode an image of ", image.width, " by ", image.height, " pixels, ",
                            image.channels, " channels and ", image.bytes.size(),
                            " bytes: give 1, 3 or 4 channels, a byte each, of at least one pixel "
                            "and at most 2^28 bytes"));
  }
  std::string png;
  const auto append = [](void* context, void* data, int bytes) {
    static_cast<std::string*>(context)->append(static_cast<const char*>(data),
                                               static_cast<std::size_t>(bytes));
  };
  const auto width = static_cast<int>(image.width);
  if (stbi_write_png_to_func(append, &png, width, static_cast<int>(image.height), image.channels,
                             image.bytes.data(), width * image.channels) == 0) {
    throw Error(
        concat("encode an image of ", image.width, " by ", image.height, " pixels: out of memory"));
  }
  return png;
}

}  // namespace lockstep::inline internal
