#include "lockstep/rpc/internal/passed_memory.h"

#include <cstring>
#include <memory>
#include <optional>

#include <gtest/gtest.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/os/memory/memory_file.h"

namespace lockstep::rpc {
namespace {

constexpr std::uint64_t kKilobyte = 1024;
constexpr LentBlocks::Limits kLimits{.least_bytes = kKilobyte,
                                     .most_lent_bytes = 2048 * kKilobyte,
                                     .most_idle_bytes = 256 * kKilobyte,
                                     .most_blocks = 8};

// The receiver's side of a block that is handed over.
std::shared_ptr<MemoryBlock> receive(const std::shared_ptr<MemoryBlock>& block,
                                     BorrowedBlocks& borrowed) {
  Loan loan(block);
  if (loan.file().valid()) {
    borrowed.add(block->number(), block->bytes(), UniqueFd(::dup(loan.file().get())));
  }
  loan.hand_over();
  return borrowed.at(block->number(), 1);
}

TEST(LentBlocks, ABlockIsLentAgainWhenItsTensorHasEnded) {
  LentBlocks blocks(kLimits);
  BorrowedBlocks borrowed;
  const auto first = blocks.lend(100 * kKilobyte);
  ASSERT_TRUE(first);
  std::memset(first->data(), 7, 100 * kKilobyte);
  const auto received = receive(first, borrowed);
  EXPECT_EQ(received->data()[100 * kKilobyte - 1], std::byte{7});
  const auto second = blocks.lend(100 * kKilobyte);
  ASSERT_TRUE(second);
  EXPECT_NE(second->number(), first->number()) << "a tensor lies in the first";
  received->give_back();
  EXPECT_EQ(blocks.lend(100 * kKilobyte), first);
  EXPECT_TRUE(first->is_lent());
}

TEST(LentBlocks, WhatIsNotSentIsGivenBackAndItsFileSentLater) {
  LentBlocks blocks(kLimits);
  const auto block = blocks.lend(kKilobyte);
  { const Loan never_sent(block); }
  EXPECT_FALSE(block->is_lent());
  EXPECT_TRUE(block->file().valid());
  EXPECT_EQ(blocks.lend(kKilobyte), block);
}

TEST(LentBlocks, ABlockMayBeBackBeforeItsSenderKnowsThatItIsSent) {
  LentBlocks blocks(kLimits);
  const auto block = blocks.lend(kKilobyte);
  Loan sent(block);
  EXPECT_TRUE(sent.file().valid());
  block->give_back();  // The receiver.
  const Loan again(blocks.lend(kKilobyte));
  EXPECT_EQ(again.block().number(), block->number());
  EXPECT_FALSE(again.file().valid()) << "the receiver has it";
  sent.hand_over();
}

TEST(LentBlocks, ASmallTensorTakesNoLargeBlock) {
  LentBlocks blocks(kLimits);
  EXPECT_FALSE(blocks.lend(kKilobyte - 1));
  const auto large = blocks.lend(512 * kKilobyte);
  large->give_back();
  const auto small = blocks.lend(64 * kKilobyte);
  ASSERT_TRUE(small);
  EXPECT_EQ(small->bytes(), 64 * kKilobyte);
  EXPECT_EQ(blocks.lend(300 * kKilobyte), large);
}

TEST(LentBlocks, NoMoreIsLentThanTheLimits) {
  LentBlocks blocks(kLimits);
  const auto half = blocks.lend(1024 * kKilobyte);
  ASSERT_TRUE(half);
  EXPECT_FALSE(blocks.lend(1100 * kKilobyte));
  EXPECT_TRUE(blocks.lend(256 * kKilobyte));
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(blocks.lend(kKilobyte)) << i;
  EXPECT_FALSE(blocks.lend(kKilobyte)) << "eight blocks";
  half->give_back();
  EXPECT_EQ(blocks.lend(800 * kKilobyte), half);
}

TEST(LentBlocks, IdleOnesAreDropped) {
  LentBlocks blocks(kLimits);
  BorrowedBlocks borrowed;
  const auto lent = blocks.lend(512 * kKilobyte);
  const auto old = receive(blocks.lend(192 * kKilobyte), borrowed);
  const auto recent = receive(blocks.lend(128 * kKilobyte), borrowed);
  EXPECT_TRUE(blocks.drop_idle().empty());
  old->give_back();
  EXPECT_TRUE(blocks.drop_idle().empty()) << "192 KiB are idle";
  recent->give_back();
  EXPECT_EQ(blocks.drop_idle(), std::vector<std::uint64_t>{old->number()});
  EXPECT_TRUE(blocks.drop_idle().empty());
  borrowed.drop(old->number());
  EXPECT_THROW(borrowed.at(old->number(), 1), UsageError);
  EXPECT_EQ(blocks.lend(128 * kKilobyte)->number(), recent->number());
}

TEST(BorrowedBlocks, WhatIsNoBlockIsRefused) {
  BorrowedBlocks borrowed;
  EXPECT_THROW(borrowed.add(1, kKilobyte, UniqueFd()), UsageError);
  EXPECT_THROW(borrowed.add(1, kKilobyte, make_memory_file("short", kKilobyte)), UsageError);
  EXPECT_THROW(borrowed.add(1, ~std::uint64_t{0}, make_memory_file("short", kKilobyte)),
               UsageError);
  EXPECT_THROW(borrowed.at(1, 1), UsageError);
  borrowed.add(1, kKilobyte, make_memory_file("block", 4096 + kKilobyte));
  EXPECT_THROW(borrowed.add(1, kKilobyte, make_memory_file("block", 4096 + kKilobyte)), UsageError);
  EXPECT_THROW(borrowed.at(1, kKilobyte + 1), UsageError);
  EXPECT_EQ(borrowed.at(1, kKilobyte)->bytes(), kKilobyte);
}

}  // namespace
}  // namespace lockstep::rpc
