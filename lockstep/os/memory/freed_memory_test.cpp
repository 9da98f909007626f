#include "lockstep/os/memory/freed_memory.h"

#include <cstdlib>
#include <functional>

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasItsOwnAllocator = true;
#else
constexpr bool kHasItsOwnAllocator = false;
#endif

// Free bytes that malloc holds after a large block was made and freed.
std::size_t kept_of(std::size_t bytes) {
  void* volatile block = std::malloc(bytes);  // volatile: else the compiler does without both
  std::free(block);
  return ::mallinfo2().fordblks;
}

// Settings of malloc last as long as their process.
int exit_code_of_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(KeepFreedMemory, LargeBlocksStayWithTheProcess) {
  EXPECT_EQ(exit_code_of_child([] {
              if (keep_freed_memory() == kHasItsOwnAllocator) return 1;
              constexpr std::size_t kBlock = std::size_t{31} << 20;
              return kHasItsOwnAllocator || kept_of(kBlock) >= kBlock ? 0 : 2;
            }),
            0);
}

TEST(KeepFreedMemory, LeavesAloneWhatTheEnvironmentSets) {
  for (const char* setting :
       {"MALLOC_TRIM_THRESHOLD_=131072", "MALLOC_MMAP_THRESHOLD_=131072", "MALLOC_MMAP_MAX_=10",
        "MALLOC_TOP_PAD_=0", "GLIBC_TUNABLES=glibc.malloc.trim_threshold=131072"}) {
    EXPECT_EQ(exit_code_of_child([setting] {
                ::putenv(const_cast<char*>(setting));
                return keep_freed_memory() ? 1 : 0;
              }),
              0)
        << setting;
  }
}

TEST(ReleaseFreedMemory, GivesBackWhatWasKept) {
  if (kHasItsOwnAllocator) {
    GTEST_SKIP() << "needs malloc of the C library, which sanitizers replace";
  }
  EXPECT_EQ(exit_code_of_child([] {
              if (!keep_freed_memory()) return 1;
              constexpr std::size_t kBlock = std::size_t{31} << 20;
              if (kept_of(kBlock) < kBlock) return 2;
              // Other tests may have left free blocks amid the heap: its size counts.
              const std::size_t kept = ::mallinfo2().arena;
              release_freed_memory();
              return ::mallinfo2().arena < kept - kBlock / 2 ? 0 : 3;
            }),
            0);
}

}  // namespace
}  // namespace lockstep
