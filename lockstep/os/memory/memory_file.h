#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Creates an unnamed file in memory (memfd), which exists while a process has it open or mapped.
/// It uses memory only when populated, and none of /dev/shm, which is small in containers. `name`
/// is shown in /proc.
/// Errors: SystemError.
UniqueFd make_memory_file(const char* name, std::uint64_t bytes);

/// Size of such a file; empty if `fd` is none.
/// Errors: none.
std::optional<std::uint64_t> memory_file_bytes(int fd) noexcept;

/// A mapped range of a file, readable and writable, shared with all processes that map it. Forked
/// processes do not inherit it; core files do not contain it.
/// Lifetime: the destructor unmaps it.
/// Errors: SystemError.
class SharedMapping {
 public:
  SharedMapping() = default;
  SharedMapping(int fd, std::uint64_t bytes) : SharedMapping(fd, 0, bytes) {}
  /// From `offset` on, a multiple of the page size.
  SharedMapping(int fd, std::uint64_t offset, std::uint64_t bytes);
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

  /// Allocates memory for the range now, so that a lack of memory is an error here and not a SIGBUS
  /// later. `offset`: from data(). Rounded outwards to whole pages.
  /// Errors: SystemError if there is not enough.
  void populate(std::uint64_t offset, std::uint64_t bytes) const;

  /// Requests huge pages, if the system gives them to shared memory on request. Call it before
  /// memory is allocated.
  void prefer_huge_pages() const noexcept;

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace lockstep::inline internal
