#include "bench/all_reduce/shared_buffers.h"

#include <algorithm>
#include <cerrno>
#include <string>

#include <fcntl.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::bench {
namespace {

constexpr const char* kKey = "bench/shared_buffers";
constexpr std::uint64_t kHugePage = 2 << 20;  // no two ranks share a page, whatever its size
constexpr std::size_t kElementsPerLine = 64 / sizeof(float);

std::uint64_t rounded_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// The ranks are one user's, so each may open what another holds open.
UniqueFd open_file(const Control& control, std::uint64_t bytes) {
  const auto store = control.group().c10d_store();
  if (control.rank() == 0) {
    UniqueFd file = make_memory_file("lockstep-bench", bytes);
    store->set(kKey, concat("/proc/", ::getpid(), "/fd/", file.get()));
    return file;
  }
  const std::vector<std::uint8_t> path = store->get(kKey);
  const std::string text(path.begin(), path.end());
  UniqueFd file(::open(text.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.valid()) throw SystemError(concat("bench: open rank 0's memory ", text), errno);
  return file;
}

}  // namespace

SharedBuffers::SharedBuffers(const Control& control, std::int64_t bytes)
    : stride_(rounded_up(static_cast<std::uint64_t>(bytes), kHugePage)),
      file_(open_file(control, stride_ * static_cast<std::uint64_t>(control.ranks()))),
      mapping_(file_.get(), stride_ * static_cast<std::uint64_t>(control.ranks())) {
  mapping_.populate(stride_ * static_cast<std::uint64_t>(control.rank()), stride_);
  control.barrier();
}

std::byte* SharedBuffers::of(int rank) const {
  return mapping_.data() + stride_ * static_cast<std::uint64_t>(rank);
}

Part part_of(std::size_t elements, int rank, int ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  const std::size_t share = rounded_up((elements + count - 1) / count, kElementsPerLine);
  const std::size_t first = std::min(elements, share * static_cast<std::size_t>(rank));
  return {first, std::min(share, elements - first)};
}

}  // namespace lockstep::bench
