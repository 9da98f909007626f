#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// A file in the address space of this process, readable and writable, copied on write: a page
/// shows what others write to the file until this process writes to it; from then on the page is
/// this process's own.
/// Threads: any.
/// Lifetime: unmapped by the destructor.
/// Errors: SystemError.
class PrivateMapping {
 public:
  struct Range {
    std::uint64_t begin = 0;  ///< From data(), in bytes.
    std::uint64_t end = 0;
  };

  /// Of a memory file (make_memory_file). Errors: SystemError, also where /proc/self/pagemap cannot
  /// be read.
  PrivateMapping(int fd, std::uint64_t bytes);
  PrivateMapping(const PrivateMapping&) = delete;
  PrivateMapping& operator=(const PrivateMapping&) = delete;
  ~PrivateMapping();

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

  /// Pages that are this process's own, ascending; adjacent ones are one range. Reads the page
  /// tables alone: a few ns a page that was ever read or written.
  std::vector<Range> own_pages() const;
  /// The same by reading the whole of /proc/self/pagemap: on Linux before 6.7.
  std::vector<Range> own_pages_of_pagemap() const;

  /// Gives own pages up: they show the file again.
  void drop(const Range& pages) const;

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  UniqueFd pagemap_;
};

}  // namespace lockstep::inline internal
