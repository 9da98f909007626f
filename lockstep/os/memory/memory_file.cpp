#include "lockstep/os/memory/memory_file.h"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/machine/machine.h"

namespace lockstep::inline internal {
namespace {

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE: Linux 5.14, younger than our headers

// Of a range of whole pages, what the file has memory for already.
std::uint64_t present_bytes(std::byte* begin, std::uint64_t bytes, std::uint64_t page) {
  std::vector<unsigned char> pages(bytes / page);
  if (::mincore(begin, bytes, pages.data()) != 0) return 0;
  return page * static_cast<std::uint64_t>(
                    std::ranges::count_if(pages, [](unsigned char one) { return (one & 1) != 0; }));
}

// Without MADV_POPULATE_WRITE pages come one by one; by then the check of free memory has passed.
void touch_pages(std::byte* begin, std::uint64_t bytes, std::uint64_t page) {
  for (std::uint64_t offset = 0; offset < bytes; offset += page) {
    auto* const byte = reinterpret_cast<unsigned char*>(begin + offset);
    __atomic_fetch_or(byte, 0, __ATOMIC_RELAXED);
  }
}

}  // namespace

UniqueFd make_memory_file(const char* name, std::uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    throw SystemError(concat("making a memory file of ", bytes, " bytes"), EFBIG,
                      concat("the limit of file sizes is ", limit.rlim_cur, " bytes (ulimit -f)"));
  }
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC));
  if (!fd.valid()) throw SystemError("making a memory file", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    throw SystemError(concat("making a memory file of ", bytes, " bytes"), errno);
  }
  return fd;
}

std::optional<std::uint64_t> memory_file_bytes(int fd) noexcept {
  struct stat facts {};
  // Files with a name may be anything, and others may change them.
  if (::fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_nlink != 0) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(facts.st_size);
}

SharedMapping::SharedMapping(int fd, std::uint64_t offset, std::uint64_t bytes) : bytes_(bytes) {
  void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                               fd, static_cast<off_t>(offset));
  if (address == MAP_FAILED) {
    throw SystemError(concat("mapping ", bytes, " bytes of shared memory"), errno,
                      "look at the limit of address space (ulimit -v)");
  }
  data_ = static_cast<std::byte*>(address);
  ::madvise(address, bytes, MADV_DONTFORK);
  ::madvise(address, bytes, MADV_DONTDUMP);
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

void SharedMapping::prefer_huge_pages() const noexcept {
  ::madvise(data_, bytes_, MADV_HUGEPAGE);
}

void SharedMapping::populate(std::uint64_t offset, std::uint64_t bytes) const {
  if (bytes == 0) return;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = offset / page * page;
  const std::uint64_t length = (offset + bytes - begin + page - 1) / page * page;
  // Beyond a control group's limit the kernel kills instead of refusing: look first.
  const std::uint64_t available = available_memory_bytes();
  if (length > available && length - present_bytes(data_ + begin, length, page) > available) {
    throw SystemError(concat("taking ", length, " bytes of shared memory"), ENOMEM,
                      concat(available,
                             " bytes are free (memory limit of the machine or of this "
                             "control group)"));
  }
  if (::madvise(data_ + begin, length, kPopulateWrite) == 0) return;
  if (errno != EINVAL) {
    throw SystemError(concat("taking ", length, " bytes of shared memory"), errno);
  }
  touch_pages(data_ + begin, length, page);
}

}  // namespace lockstep::inline internal
