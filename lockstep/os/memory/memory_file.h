#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// A file of `bytes` bytes that lives in memory alone and has no name: it is gone with the last
/// process that holds it open or mapped, however that ends. It takes memory where it is populated,
/// not before, and none of /dev/shm, which containers keep small. `name` shows in /proc.
/// Errors: SystemError.
UniqueFd make_memory_file(const char* name, std::uint64_t bytes);

/// The size of such a file; nothing where `fd` is none. Errors: none.
std::optional<std::uint64_t> memory_file_bytes(int fd) noexcept;

/// A part of a file in the address space of this process, readable and writable, shared with all
/// that map it too; not inherited by forked processes and left out of core files.
/// Lifetime: unmapped by the destructor. Errors: SystemError.
class SharedMapping {
 public:
  SharedMapping() = default;
  SharedMapping(int fd, std::uint64_t bytes) : SharedMapping(fd, 0, bytes) {}
  /// From `offset` of the file, a multiple of the page size, on.
  SharedMapping(int fd, std::uint64_t offset, std::uint64_t bytes);
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

  /// Gives the range memory now, so that the lack of it is an error here and no SIGBUS later.
  /// `offset`: from data(). Rounded outwards to whole pages. Errors: SystemError when there is not
  /// enough.
  void populate(std::uint64_t offset, std::uint64_t bytes) const;

  /// Before memory is taken: huge pages where the system gives them to shared memory that asks.
  void prefer_huge_pages() const noexcept;

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace lockstep::inline internal
