#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/os/files/readable_file.h"

namespace lockstep::inline internal {

/// Elements in a file, with sizes and strides in elements.
struct StridedBytes {
  std::uint64_t offset_bytes = 0;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
};

/// Reads elements into `target`, which has the same sizes and is on the CPU. Long runs of these
/// elements are read directly into it, short ones through a buffer.
/// `crc32`: updated with all bytes, which must then be one run of the file.
/// Errors: as ReadableFile::read.
void read_strided(const ReadableFile& file, const StridedBytes& source, const at::Tensor& target,
                  std::uint32_t* crc32 = nullptr);

/// Whether the elements are contiguous in the file, in any order of dimensions.
bool is_one_run(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides);

}  // namespace lockstep::inline internal
