#include "lockstep/os/memory/memory_heap.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

class MemoryHeapTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kLineBytes = 64;
  static constexpr std::uint64_t kPageBytes = 4096;
  static constexpr std::uint64_t kBytes = 2 * 1024 * 1024;
  static constexpr std::uint64_t kBegin = 10 * kBytes;

  std::uint64_t address(const std::byte* block) const {
    return kBegin + static_cast<std::uint64_t>(block - memory_->data());
  }

  const UniqueFd file_ = make_memory_file("heap test", kBytes);
  const std::shared_ptr<const SharedMapping> memory_ =
      std::make_shared<SharedMapping>(file_.get(), kBytes);
  MemoryHeap heap_{memory_, kBegin};
};

TEST_F(MemoryHeapTest, BlocksAreAlignedToLinesAndLargeOnesToPages) {
  for (const std::uint64_t bytes : {0, 1, 64, 65, 4095}) {
    EXPECT_EQ(address(heap_.allocate(bytes)) % kLineBytes, 0U) << bytes;
  }
  for (const std::uint64_t bytes : {4096, 4097, 100'000}) {
    EXPECT_EQ(address(heap_.allocate(bytes)) % kPageBytes, 0U) << bytes;
  }
}

TEST_F(MemoryHeapTest, TheSmallestBlockThatFitsIsTaken) {
  std::byte* const large = heap_.allocate(65'536);
  heap_.allocate(kPageBytes);
  std::byte* const small = heap_.allocate(16'384);
  heap_.allocate(kPageBytes);
  heap_.free(large);
  heap_.free(small);
  EXPECT_EQ(heap_.allocate(8'192), small);
  EXPECT_EQ(heap_.allocate(32'768), large);
}

TEST_F(MemoryHeapTest, NeighboursThatAreFreeBecomeOneBlock) {
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(heap_.allocate(4096));
  std::byte* const rest = heap_.allocate(kBytes - 3 * 4096);
  EXPECT_THROW(heap_.allocate(1), SystemError);
  for (const int i : {0, 2, 1}) heap_.free(blocks[static_cast<std::size_t>(i)]);
  EXPECT_EQ(heap_.allocate(3 * 4096), blocks[0]);
  heap_.free(blocks[0]);
  heap_.free(rest);
  EXPECT_EQ(address(heap_.allocate(kBytes)), kBegin);
}

TEST_F(MemoryHeapTest, MoreThanThereIsIsAnError) {
  for (const std::uint64_t bytes :
       {kBytes + 1, ~std::uint64_t{0}, ~std::uint64_t{0} - 4096}) {
    try {
      heap_.allocate(bytes);
      ADD_FAILURE() << "took " << bytes << " bytes";
    } catch (const SystemError& error) {
      EXPECT_EQ(error.errno_value(), ENOMEM);
    }
  }
  EXPECT_EQ(address(heap_.allocate(kBytes)), kBegin);
}

TEST_F(MemoryHeapTest, KnowsWhatLiesInIt) {
  std::byte* const block = heap_.allocate(8192);
  EXPECT_EQ(heap_.offset_of(block + 100, 8092), address(block) + 100);
  EXPECT_EQ(heap_.offset_of(memory_->data() - 1, 64), std::nullopt);
  EXPECT_EQ(heap_.offset_of(memory_->data() + kBytes - 64, 65), std::nullopt);
  const std::byte elsewhere{};
  EXPECT_EQ(heap_.offset_of(&elsewhere, 1), std::nullopt);
  EXPECT_EQ(heap_.offset_of(nullptr, 0), std::nullopt);
}

// Blocks keep what is written to them whatever happens around them, and nothing is lost.
TEST_F(MemoryHeapTest, AnyOrderOfCalls) {
  struct Block {
    std::byte* data;
    std::uint64_t bytes;
    std::byte content;
  };
  const auto seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  const auto is_intact = [](const Block& block) {
    return std::all_of(block.data, block.data + block.bytes,
                       [&](std::byte byte) { return byte == block.content; });
  };
  std::vector<Block> blocks;
  const auto free_any = [&] {
    const auto index = static_cast<std::ptrdiff_t>(below(blocks.size()));
    ASSERT_TRUE(is_intact(blocks[static_cast<std::size_t>(index)]));
    heap_.free(blocks[static_cast<std::size_t>(index)].data);
    blocks.erase(blocks.begin() + index);
  };
  for (int step = 0; step < 3000; ++step) {
    if (!blocks.empty() && below(5) < 2) {
      free_any();
      continue;
    }
    const std::uint64_t bytes = below(std::uint64_t{1} << below(18));
    try {
      const Block block{heap_.allocate(bytes), bytes, std::byte(below(256))};
      ASSERT_TRUE(heap_.offset_of(block.data, bytes));
      std::memset(block.data, static_cast<int>(block.content), bytes);
      blocks.push_back(block);
    } catch (const SystemError&) {
      ASSERT_FALSE(blocks.empty());
      while (blocks.size() > 20) free_any();
    }
  }
  while (!blocks.empty()) free_any();
  EXPECT_EQ(address(heap_.allocate(kBytes)), kBegin);
}

}  // namespace
}  // namespace lockstep
