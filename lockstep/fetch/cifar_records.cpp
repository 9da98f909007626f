#include "lockstep/fetch/cifar_records.h"

#include "lockstep/base/check.h"
#include "lockstep/base/cifar_format.h"

namespace lockstep {

void append_cifar_record(std::string& records, std::uint8_t label, const RgbImage& image,
                         const CropPosition& position) {
  LOCKSTEP_ASSERT(position.x + kCifarSide <= image.width &&
                  position.y + kCifarSide <= image.height);
  records += '\0';
  records += static_cast<char>(label);
  for (std::size_t channel = 0; channel < 3; ++channel) {
    for (std::size_t row = position.y; row < position.y + kCifarSide; ++row) {
      const std::uint8_t* const line = image.pixels.data() + 3 * image.width * row;
      for (std::size_t column = position.x; column < position.x + kCifarSide; ++column) {
        records += static_cast<char>(line[3 * column + channel]);
      }
    }
  }
}

}  // namespace lockstep
