#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// A mapped file, readable and writable, copied on write: a page shows what others write to the
/// file until this process writes to it; then the page is private to this process.
/// Threads: any.
/// Lifetime: the destructor unmaps it.
/// Errors: SystemError.
class PrivateMapping {
 public:
  struct Range {
    std::uint64_t begin = 0;  ///< From data(), in bytes.
    std::uint64_t end = 0;
  };

  /// Maps a memory file (make_memory_file).
  /// Errors: SystemError, also if /proc/self/pagemap cannot be read.
  PrivateMapping(int fd, std::uint64_t bytes);
  PrivateMapping(const PrivateMapping&) = delete;
  PrivateMapping& operator=(const PrivateMapping&) = delete;
  ~PrivateMapping();

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

  /// Private pages, ascending; adjacent pages are one range. Reads only page tables: a few ns per
  /// page that was ever accessed.
  std::vector<Range> own_pages() const;
  /// The same from all of /proc/self/pagemap: for Linux before 6.7.
  std::vector<Range> own_pages_of_pagemap() const;

  /// Discards private pages: they show the file again.
  void drop(const Range& pages) const;

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  UniqueFd pagemap_;
};

}  // namespace lockstep::inline internal
