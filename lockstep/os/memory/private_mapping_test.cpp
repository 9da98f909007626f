#include "lockstep/os/memory/private_mapping.h"

#include <algorithm>
#include <random>
#include <set>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/os/memory/memory_file.h"

namespace lockstep {
namespace {

using Range = PrivateMapping::Range;

const std::uint64_t kPage = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));

bool same(const std::vector<Range>& ranges, const std::vector<Range>& others) {
  return std::ranges::equal(ranges, others, [](const Range& a, const Range& b) {
    return a.begin == b.begin && a.end == b.end;
  });
}

struct Memory {
  explicit Memory(std::uint64_t pages) : file(make_memory_file("test", pages * kPage)) {}
  UniqueFd file;
  SharedMapping shared{file.get(), memory_file_bytes(file.get()).value()};
  PrivateMapping own{file.get(), memory_file_bytes(file.get()).value()};
};

TEST(PrivateMapping, ShowsWhatOthersWriteUntilItIsWritten) {
  const Memory memory(4);
  EXPECT_EQ(memory.own.data()[kPage], std::byte{0});
  memory.shared.data()[kPage] = std::byte{1};
  EXPECT_EQ(memory.own.data()[kPage], std::byte{1});
  EXPECT_TRUE(memory.own.own_pages().empty());
  memory.own.data()[kPage] = std::byte{2};
  memory.shared.data()[kPage] = std::byte{3};
  memory.shared.data()[2 * kPage] = std::byte{4};
  EXPECT_EQ(memory.own.data()[kPage], std::byte{2});
  EXPECT_EQ(memory.own.data()[2 * kPage], std::byte{4});
  const std::vector<Range> pages = memory.own.own_pages();
  EXPECT_TRUE(same(pages, {{kPage, 2 * kPage}}));
  memory.own.drop(pages[0]);
  EXPECT_EQ(memory.own.data()[kPage], std::byte{3});
  EXPECT_TRUE(memory.own.own_pages().empty());
}

TEST(PrivateMapping, ShowsWhatAnotherProcessWrites) {
  const Memory memory(2);
  EXPECT_EQ(memory.own.data()[7], std::byte{0});
  const pid_t child = ::fork();
  if (child == 0) {
    const SharedMapping theirs(memory.file.get(), 2 * kPage);
    theirs.data()[7] = std::byte{9};
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(memory.own.data()[7], std::byte{9});
}

// More ranges than one call of the system returns.
TEST(PrivateMapping, FindsAnyPagesByBothWays) {
  std::mt19937 random(7);
  for (const std::uint64_t pages : {1u, 2u, 127u, 1009u}) {
    const Memory memory(pages);
    std::set<std::uint64_t> written;
    for (std::uint64_t i = 0; i < pages; ++i) {
      if (random() % 2 == 0)
        static_cast<void>(*const_cast<volatile std::byte*>(memory.own.data() + i * kPage));
      if (random() % 3 == 0) memory.shared.data()[i * kPage] = std::byte{1};
      if (random() % 2 == 0) continue;
      memory.own.data()[i * kPage + random() % kPage] = std::byte{1};
      written.insert(i);
    }
    std::vector<Range> expected;
    for (const std::uint64_t page : written) {
      if (!expected.empty() && expected.back().end == page * kPage) {
        expected.back().end += kPage;
      } else {
        expected.push_back({page * kPage, (page + 1) * kPage});
      }
    }
    EXPECT_TRUE(same(memory.own.own_pages(), expected)) << pages;
    EXPECT_TRUE(same(memory.own.own_pages_of_pagemap(), expected)) << pages;
  }
}

TEST(PrivateMapping, OfNothingHasNoPages) {
  const UniqueFd file = make_memory_file("test", 0);
  const PrivateMapping own(file.get(), 0);
  EXPECT_TRUE(own.own_pages().empty());
}

}  // namespace
}  // namespace lockstep
