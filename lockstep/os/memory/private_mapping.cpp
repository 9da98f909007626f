#include "lockstep/os/memory/private_mapping.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

// PAGEMAP_SCAN of Linux 6.7 (linux/fs.h), younger than our headers.
struct PageRegion {
  std::uint64_t start, end, categories;
};
struct PageScan {
  std::uint64_t size, flags, start, end, walk_end, regions, region_count, most_pages;
  std::uint64_t inverted, required, any_of, returned;
};
constexpr unsigned long kPageScan = _IOWR('f', 16, PageScan);
constexpr std::uint64_t kIsFile = 1 << 2;
constexpr std::uint64_t kIsPresent = 1 << 3;
constexpr std::uint64_t kIsSwapped = 1 << 4;

// Of an entry of /proc/self/pagemap.
constexpr std::uint64_t kEntryIsFile = std::uint64_t{1} << 61;
constexpr std::uint64_t kEntryIsThere = std::uint64_t{3} << 62;  // in memory or swapped out

std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

void append(std::vector<PrivateMapping::Range>& ranges, std::uint64_t begin, std::uint64_t end) {
  if (!ranges.empty() && ranges.back().end == begin) {
    ranges.back().end = end;
  } else {
    ranges.push_back({begin, end});
  }
}

}  // namespace

PrivateMapping::PrivateMapping(int fd, std::uint64_t bytes)
    : bytes_((bytes + page_bytes() - 1) / page_bytes() * page_bytes()),
      pagemap_(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {
  if (!pagemap_.valid()) {
    throw SystemError("opening /proc/self/pagemap", errno,
                      "one_copy_per_machine needs it to find changed parameters");
  }
  if (bytes_ == 0) return;
  void* const address =
      ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (address == MAP_FAILED) {
    throw SystemError(concat("mapping ", bytes_, " bytes copied on write"), errno,
                      "look at the limit of address space (ulimit -v)");
  }
  data_ = static_cast<std::byte*>(address);
}

PrivateMapping::~PrivateMapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

std::vector<PrivateMapping::Range> PrivateMapping::own_pages() const {
  std::vector<Range> ranges;
  if (bytes_ == 0) return ranges;
  const auto first = reinterpret_cast<std::uintptr_t>(data_);
  std::array<PageRegion, 64> regions;
  PageScan scan{.size = sizeof(PageScan),
                .flags = 0,
                .start = first,
                .end = first + bytes_,
                .walk_end = 0,
                .regions = reinterpret_cast<std::uintptr_t>(regions.data()),
                .region_count = regions.size(),
                .most_pages = 0,
                .inverted = kIsFile,
                .required = kIsFile,
                .any_of = kIsPresent | kIsSwapped,
                .returned = 0};
  while (scan.start < scan.end) {
    const int found = ::ioctl(pagemap_.get(), kPageScan, &scan);
    if (found < 0 && errno == EINTR) continue;
    if (found < 0) return own_pages_of_pagemap();
    for (int i = 0; i < found; ++i) {
      const PageRegion& region = regions[static_cast<std::size_t>(i)];
      append(ranges, region.start - first, region.end - first);
    }
    scan.start = scan.walk_end;
  }
  return ranges;
}

std::vector<PrivateMapping::Range> PrivateMapping::own_pages_of_pagemap() const {
  std::vector<Range> ranges;
  std::array<std::uint64_t, 4096> entries;
  const std::uint64_t page = page_bytes();
  const std::uint64_t first = reinterpret_cast<std::uintptr_t>(data_) / page;
  const std::uint64_t pages = bytes_ / page;
  for (std::uint64_t done = 0; done < pages;) {
    const std::uint64_t wanted = std::min<std::uint64_t>(entries.size(), pages - done);
    const ssize_t got = ::pread(pagemap_.get(), entries.data(), wanted * sizeof entries[0],
                                static_cast<off_t>((first + done) * sizeof entries[0]));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw SystemError("reading /proc/self/pagemap", got < 0 ? errno : EIO);
    const std::uint64_t read = static_cast<std::uint64_t>(got) / sizeof entries[0];
    for (std::uint64_t i = 0; i < read; ++i) {
      const std::uint64_t entry = entries[i];
      const bool is_own = (entry & kEntryIsThere) != 0 && (entry & kEntryIsFile) == 0;
      if (is_own) append(ranges, (done + i) * page, (done + i + 1) * page);
    }
    done += read;
  }
  return ranges;
}

void PrivateMapping::drop(const Range& pages) const {
  if (::madvise(data_ + pages.begin, pages.end - pages.begin, MADV_DONTNEED) == 0) return;
  throw SystemError(concat("dropping ", pages.end - pages.begin, " bytes of own pages"), errno);
}

}  // namespace lockstep::inline internal
