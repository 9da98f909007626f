#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/memory/memory_file.h"

namespace lockstep::rpc::inline internal {

/// Memory that a worker fills with a tensor and another worker of its machine then keeps as the
/// tensor's own: a file in memory that both map. Its first page holds one word, which says whether
/// a tensor lies in the block; the tensor's elements follow. Threads: is_lent() and give_back()
/// from any of both processes. Lifetime: the kernel frees the memory when neither process has it
/// mapped, however they end.
class MemoryBlock {
 public:
  /// The sender's: a new block, populated and lent. Errors: SystemError where memory is short.
  MemoryBlock(std::uint64_t number, std::uint64_t bytes);
  /// The receiver's. Errors: UsageError where `file` is not that of such a block; SystemError.
  MemoryBlock(std::uint64_t number, std::uint64_t bytes, UniqueFd file);

  std::uint64_t number() const { return number_; }
  /// Room for elements.
  std::uint64_t bytes() const { return bytes_; }
  std::byte* data() const;

  bool is_lent() const { return word().load(std::memory_order_acquire) != 0; }
  void lend() { word().store(1, std::memory_order_relaxed); }
  /// By the receiver, when its tensor ends; or by the sender, of a tensor that it never sent.
  void give_back() { word().store(0, std::memory_order_release); }

  /// The sender's, until the receiver has it. Only while the block is lent, by the thread that
  /// sends.
  UniqueFd& file() { return file_; }

 private:
  std::atomic<std::uint32_t>& word() const;

  std::uint64_t number_;
  std::uint64_t bytes_;
  UniqueFd file_;
  SharedMapping mapping_;
};

/// The tensor of a frame that is not sent yet, in a block. Gives the block back where it is not
/// handed over. Movable.
class Loan {
 public:
  /// Takes the block's file, if the receiver has not got it: the receiver may give the block back,
  /// and another thread lend it again, before the thread that sends it goes on.
  explicit Loan(std::shared_ptr<MemoryBlock> block)
      : block_(std::move(block)), file_(std::move(block_->file())) {}
  Loan(Loan&&) = default;
  Loan& operator=(Loan&& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(file_, other.file_);
    return *this;
  }
  ~Loan() {
    if (!block_) return;
    block_->file() = std::move(file_);
    block_->give_back();
  }

  const MemoryBlock& block() const { return *block_; }
  /// To be sent beside the frame, where it is valid.
  const UniqueFd& file() const { return file_; }
  /// The receiver has the block, and its file.
  void hand_over() {
    file_.reset();
    block_.reset();
  }

 private:
  std::shared_ptr<MemoryBlock> block_;
  UniqueFd file_;
};

/// The blocks in which a worker passes tensors to one other. A block whose tensor has ended is used
/// again. Threads: any.
class LentBlocks {
 public:
  struct Limits {
    /// Of a tensor. Smaller ones go through the socket: a block costs more than it saves.
    std::uint64_t least_bytes = std::uint64_t{32} << 10;
    /// In blocks that hold tensors. What is more goes through the socket, which keeps no copy.
    std::uint64_t most_lent_bytes = std::uint64_t{2} << 30;
    /// In blocks that hold none.
    std::uint64_t most_idle_bytes = std::uint64_t{256} << 20;
    std::size_t most_blocks = 1024;
  };

  LentBlocks() : LentBlocks(Limits{}) {}
  explicit LentBlocks(const Limits& limits) : limits_(limits) {}

  /// A block with room for a tensor of so many bytes; null where none can be had.
  std::shared_ptr<MemoryBlock> lend(std::uint64_t bytes) noexcept;
  /// Takes idle blocks above most_idle_bytes out. Returns the numbers of those that the receiver
  /// has, which it is to unmap.
  std::vector<std::uint64_t> drop_idle();
  /// The other worker is gone.
  void clear();

 private:
  const Limits limits_;
  Mutex mutex_;
  // Those that were lent longest ago come first.
  std::vector<std::shared_ptr<MemoryBlock>> blocks_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint64_t all_bytes_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_number_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

/// The blocks that another worker has lent to this one. Threads: one at a time.
class BorrowedBlocks {
 public:
  /// Errors: as MemoryBlock; UsageError for a number that is in use.
  void add(std::uint64_t number, std::uint64_t bytes, UniqueFd file);
  /// Errors: UsageError where there is none, or one of fewer bytes.
  const std::shared_ptr<MemoryBlock>& at(std::uint64_t number, std::uint64_t bytes) const;
  /// Unmaps it when its last tensor ends.
  void drop(std::uint64_t number) { blocks_.erase(number); }

 private:
  std::unordered_map<std::uint64_t, std::shared_ptr<MemoryBlock>> blocks_;
};

}  // namespace lockstep::rpc::inline internal
