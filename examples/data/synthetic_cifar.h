#pragma once

#include <cstdint>
#include <span>

#include "examples/data/cifar_format.h"

namespace examples {

/// Record `index` of a made-up data set: image `index` of a sequence that `seed` and `stream`
/// choose. Its class is index % 100; the class and `seed` choose its pattern.
void make_synthetic_cifar_record(std::uint64_t seed, std::uint64_t stream, std::uint64_t index,
                                 std::span<std::uint8_t, kCifarRecordBytes> record);

}  // namespace examples
