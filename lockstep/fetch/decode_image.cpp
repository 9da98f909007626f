#include "lockstep/fetch/decode_image.h"

#include <memory>

// The one place that compiles stb_image. Its SIMD paths give the bits of its plain ones.
#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_ONLY_JPEG
#define STBI_ONLY_PNG
#define STBI_NO_STDIO
#include <stb/stb_image.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/os/readable_file.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 28;
constexpr std::uint64_t kMostPixels = 100'000'000;
constexpr int kChannels = 3;

}  // namespace

RgbImage decode_image(const std::filesystem::path& path) {
  const auto refuse = [&](const auto&... parts) {
    throw CorruptFile(concat("image ", path.filename().string(), ": ", parts...));
  };
  const ReadableFile file(path);
  if (file.size_bytes() > kMostFileBytes) refuse("it is too large, ", file.size_bytes(), " bytes");
  std::vector<stbi_uc> bytes(file.size_bytes());
  file.read(0, bytes.data(), bytes.size());
  const int length = static_cast<int>(bytes.size());
  int width = 0;
  int height = 0;
  int channels = 0;
  const bool known = stbi_info_from_memory(bytes.data(), length, &width, &height, &channels) == 1;
  if (!known) refuse("it is neither PNG nor JPEG: ", stbi_failure_reason());
  const auto pixel_count = static_cast<std::uint64_t>(width) * static_cast<std::uint64_t>(height);
  if (pixel_count > kMostPixels) refuse("it is too large, ", width, " by ", height, " pixels");
  const std::unique_ptr<stbi_uc, decltype(&stbi_image_free)> pixels(
      stbi_load_from_memory(bytes.data(), length, &width, &height, &channels, kChannels),
      stbi_image_free);
  if (pixels == nullptr) refuse("it is damaged: ", stbi_failure_reason());
  return {.width = static_cast<std::size_t>(width),
          .height = static_cast<std::size_t>(height),
          .pixels = {pixels.get(), pixels.get() + pixel_count * kChannels}};
}

}  // namespace lockstep
