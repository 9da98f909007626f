#pragma once

#include <cstdint>

#include "lockstep/os/files/readable_file.h"
#include "lockstep/snapshot/internal/safetensors_header.h"

namespace lockstep::inline internal {

/// The header of a safetensors file, and the position of its data.
struct SafetensorsLayout {
  SafetensorsHeader header;
  std::uint64_t data_begin = 0;
};

/// Reads only the header.
/// Errors: as read_safetensors.
SafetensorsLayout read_safetensors_layout(const ReadableFile& file);

}  // namespace lockstep::inline internal
