#pragma once

#include <cstdint>
#include <string>

#include "lockstep/fetch/crop_plan.h"
#include "lockstep/fetch/decode_image.h"

namespace lockstep {

/// Appends a record of CIFAR-100's format (base/cifar_format.h): the square of 32×32 pixels of
/// `image` whose upper left corner is `position`, which must lie within it, with fine label `label`
/// and coarse label 0.
void append_cifar_record(std::string& records, std::uint8_t label, const RgbImage& image,
                         const CropPosition& position);

}  // namespace lockstep
