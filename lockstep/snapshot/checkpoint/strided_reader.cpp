#include "lockstep/snapshot/checkpoint/strided_reader.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <zlib.h>

namespace lockstep::inline internal {
namespace {

/// What is copied by way of memory, at most so much at once.
constexpr std::int64_t kBufferBytes = std::int64_t{1} << 20;
/// Shorter runs are read together with what is between them: a call costs as much as copying this.
constexpr std::int64_t kShortRunBytes = 512;

using Numbers = std::vector<std::int64_t>;

/// How many of the last elements lie one behind the other.
std::int64_t last_run(const Numbers& sizes, const Numbers& strides) {
  std::int64_t run = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 1) continue;
    if (strides[i] != run) break;
    run *= sizes[i];
  }
  return run;
}

std::int64_t elements_of(const Numbers& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

/// The order of the dimensions in the file: the largest distances first.
std::vector<std::int64_t> file_order(const Numbers& sizes, const Numbers& strides) {
  std::vector<std::int64_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](std::int64_t i) {
    return std::pair(strides[static_cast<std::size_t>(i)], sizes[static_cast<std::size_t>(i)]);
  });
  return order;
}

Numbers in_order(const Numbers& values, const std::vector<std::int64_t>& order) {
  Numbers result;
  for (const std::int64_t i : order) result.push_back(values[static_cast<std::size_t>(i)]);
  return result;
}

class Reader {
 public:
  Reader(const ReadableFile& file, std::int64_t element_bytes, std::uint32_t* crc32)
      : file_(file), element_bytes_(element_bytes), crc32_(crc32) {}

  void read(std::uint64_t offset, const Numbers& sizes, const Numbers& strides,
            const at::Tensor& target) {
    const std::int64_t elements = elements_of(sizes);
    if (elements == 0) return;
    const std::int64_t run = last_run(sizes, strides);
    if (run == elements && target.is_contiguous()) {
      read_bytes(offset, target.mutable_data_ptr(), elements);
      return;
    }
    std::int64_t span = 1;
    for (std::size_t i = 0; i < sizes.size(); ++i) span += (sizes[i] - 1) * strides[i];
    if (span <= kBufferBytes / element_bytes_ &&
        (run == elements || run * element_bytes_ < kShortRunBytes)) {
      read_by_buffer(offset, span, sizes, strides, target);
      return;
    }
    // In halves, so that rows of any length become short enough.
    Numbers part = sizes;
    if (sizes.front() == 1) {
      read(offset, Numbers(sizes.begin() + 1, sizes.end()),
           Numbers(strides.begin() + 1, strides.end()), target.select(0, 0));
      return;
    }
    const std::int64_t half = sizes.front() / 2;
    part.front() = half;
    read(offset, part, strides, target.narrow(0, 0, half));
    part.front() = sizes.front() - half;
    read(offset + static_cast<std::uint64_t>(half * strides.front() * element_bytes_), part,
         strides, target.narrow(0, half, part.front()));
  }

 private:
  void read_bytes(std::uint64_t offset, void* bytes, std::int64_t elements) {
    const auto count = static_cast<std::size_t>(elements * element_bytes_);
    file_.read(offset, bytes, count);
    if (crc32_ != nullptr) {
      *crc32_ =
          static_cast<std::uint32_t>(::crc32_z(*crc32_, static_cast<const Bytef*>(bytes), count));
    }
  }

  void read_by_buffer(std::uint64_t offset, std::int64_t span, const Numbers& sizes,
                      const Numbers& strides, const at::Tensor& target) {
    if (!buffer_.defined()) buffer_ = at::empty({kBufferBytes}, at::kByte);
    read_bytes(offset, buffer_.mutable_data_ptr(), span);
    target.copy_(at::from_blob(buffer_.mutable_data_ptr(), sizes, strides, target.options()));
  }

  const ReadableFile& file_;
  const std::int64_t element_bytes_;
  std::uint32_t* const crc32_;
  at::Tensor buffer_;
};

}  // namespace

void read_strided(const ReadableFile& file, const StridedBytes& source, const at::Tensor& target,
                  std::uint32_t* crc32) {
  const std::vector<std::int64_t> order = file_order(source.sizes, source.strides);
  Reader(file, static_cast<std::int64_t>(target.element_size()), crc32)
      .read(source.offset_bytes, in_order(source.sizes, order), in_order(source.strides, order),
            target.permute(order));
}

bool is_one_run(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides) {
  const std::vector<std::int64_t> order = file_order(sizes, strides);
  return last_run(in_order(sizes, order), in_order(strides, order)) == elements_of(sizes);
}

}  // namespace lockstep::inline internal
