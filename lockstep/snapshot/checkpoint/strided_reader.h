#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/os/files/readable_file.h"

namespace lockstep::inline internal {

/// Elements in a file: of these sizes, at these distances from each other, counted in elements.
struct StridedBytes {
  std::uint64_t offset_bytes = 0;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
};

/// Fills `target`, of the same sizes and on the CPU. Reads runs of the file that hold these
/// elements and no others straight into it, and what is scattered in smaller runs by way of a
/// buffer. `crc32`: where to add that of all bytes, which then are one run of the file. Errors: as
/// ReadableFile::read.
void read_strided(const ReadableFile& file, const StridedBytes& source, const at::Tensor& target,
                  std::uint32_t* crc32 = nullptr);

/// Whether the elements are one run, whatever the order of its dimensions.
bool is_one_run(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides);

}  // namespace lockstep::inline internal
