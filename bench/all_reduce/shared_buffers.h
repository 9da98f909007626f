#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/all_reduce/control.h"
#include "lockstep/os/memory/memory_file.h"

namespace lockstep::bench {

/// A buffer of float32 for each rank, in memory that all ranks of this machine see: what a
/// shared-memory backend has, with nothing else of it. Pages lie where their rank touched them.
/// Threads: any, after construction. Errors: SystemError.
class SharedBuffers {
 public:
  /// Collective.
  SharedBuffers(const Control& control, std::int64_t bytes);

  /// The whole buffer of `rank`.
  std::byte* of(int rank) const;

 private:
  std::uint64_t stride_;
  UniqueFd file_;
  SharedMapping mapping_;
};

/// What rank `rank` of `ranks` reduces of `elements`: whole cache lines, but for the end.
struct Part {
  std::size_t first;
  std::size_t count;
};
Part part_of(std::size_t elements, int rank, int ranks);

}  // namespace lockstep::bench
