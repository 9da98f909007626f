#include "diagnose/capture/crash_stack.h"

#include <filesystem>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(CrashStack, ReadsTheRangesOfAProcess) {
  const MappedRange range = parse_mapped_range(
      "7f0a1c000000-7f0a1c021000 r-xp 00002000 08:01 131076                     /usr/lib/a b.so");
  EXPECT_EQ(range.begin, 0x7f0a1c000000U);
  EXPECT_EQ(range.end, 0x7f0a1c021000U);
  EXPECT_EQ(range.file_offset, 0x2000U);
  EXPECT_EQ(range.path, "/usr/lib/a b.so");
  const MappedRange unnamed = parse_mapped_range("1000-2000 rw-p 00000000 00:00 0 ");
  EXPECT_EQ(unnamed.end, 0x2000U);
  EXPECT_EQ(unnamed.path, "");
  EXPECT_EQ(parse_mapped_range("1000-2000 rw-p 00000000 00:00 0   [stack]").path, "");
  for (const char* other : {"", "x", "1000", "1000-", "2000-1000 r"}) {
    EXPECT_EQ(parse_mapped_range(other).end, 0U) << other;
  }
}

TEST(CrashStack, FindsTheFileOfAnAddress) {
  std::array<CrashFrame, 2> frames{};
  frames[0].address = reinterpret_cast<std::uintptr_t>(&parse_mapped_range);
  frames[1].address = 1;
  find_modules(frames);
  EXPECT_EQ(frames[0].module.data(), std::filesystem::read_symlink("/proc/self/exe").string());
  EXPECT_GT(frames[0].offset, 0U);
  EXPECT_LT(frames[0].offset, frames[0].address);
  EXPECT_STREQ(frames[1].module.data(), "");
}

TEST(CrashStack, KnowsTheRuntimeLibraries) {
  for (const char* path : {"/usr/lib/x86_64-linux-gnu/libc.so.6", "/a/libstdc++.so.6.0.30",
                           "/lib64/ld-linux-x86-64.so.2", "libc-2.31.so"}) {
    EXPECT_TRUE(is_runtime_library(path)) << path;
  }
  for (const char* path : {"", "/home/me/train", "/usr/libc.so/train", "/x/libc10.so"}) {
    EXPECT_FALSE(is_runtime_library(path)) << path;
  }
}

[[gnu::noinline]] std::size_t stack_from_here(std::span<CrashFrame> frames) {
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  return collect_stack({.instruction = here}, frames);
}

TEST(CrashStack, BeginsWhereItIsTold) {
  std::array<CrashFrame, 4> frames{};
  EXPECT_EQ(stack_from_here(frames), frames.size());
  std::array<CrashFrame, 64> more{};
  const std::size_t count = stack_from_here(more);
  EXPECT_GT(count, frames.size());
  EXPECT_LT(count, more.size());
}

TEST(CrashStack, AJumpToNowhereHasItsCaller) {
  const std::uintptr_t stack = 0x1235;
  std::array<CrashFrame, 4> frames{};
  ASSERT_EQ(
      collect_stack({.instruction = 2, .stack = reinterpret_cast<std::uintptr_t>(&stack)}, frames),
      2U);
  EXPECT_EQ(frames[0].address, 2U);
  EXPECT_EQ(frames[1].address, stack - 1);
  EXPECT_EQ(collect_stack({.instruction = 2, .stack = 8}, frames), 1U);
}

}  // namespace
}  // namespace lockstep
