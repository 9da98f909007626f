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

/// Memory that a worker fills with a tensor, and another worker of its machine then uses as the
/// tensor's storage: a memory file that both map. Its first page holds one word, which says whether
/// the block holds a tensor; the tensor's elements follow.
/// Threads: is_lent() and give_back() from any thread of both processes.
/// Lifetime: the kernel frees the memory when neither process maps it, however they end.
class MemoryBlock {
 public:
  /// For the sender: a new block, populated and lent.
  /// Errors: SystemError if memory is short.
  MemoryBlock(std::uint64_t number, std::uint64_t bytes);
  /// For the receiver: maps a block.
  /// Errors: UsageError if `file` is no such block; SystemError.
  MemoryBlock(std::uint64_t number, std::uint64_t bytes, UniqueFd file);

  std::uint64_t number() const { return number_; }
  /// Size of the part for elements.
  std::uint64_t bytes() const { return bytes_; }
  std::byte* data() const;

  bool is_lent() const { return word().load(std::memory_order_acquire) != 0; }
  void lend() { word().store(1, std::memory_order_relaxed); }
  /// Called by the receiver when its tensor is destroyed, or by the sender of a tensor that it did
  /// not send.
  void give_back() { word().store(0, std::memory_order_release); }

  /// The sender's descriptor, until the receiver has it. Use it only while the block is lent, on
  /// the sending thread.
  UniqueFd& file() { return file_; }

 private:
  std::atomic<std::uint32_t>& word() const;

  std::uint64_t number_;
  std::uint64_t bytes_;
  UniqueFd file_;
  SharedMapping mapping_;
};

/// A tensor of an unsent frame, in a block. Gives the block back unless it is handed over. Movable.
class Loan {
 public:
  /// Takes the block's descriptor if the receiver does not have it. Otherwise the receiver could
  /// give the block back, and another thread lend it again, before the sending thread continues.
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
  /// To send beside the frame, if valid.
  const UniqueFd& file() const { return file_; }
  /// Marks that the receiver has the block and its descriptor.
  void hand_over() {
    file_.reset();
    block_.reset();
  }

 private:
  std::shared_ptr<MemoryBlock> block_;
  UniqueFd file_;
};

/// Blocks in which a worker passes tensors to one other worker. A block is reused when its tensor
/// is destroyed.
/// Threads: any.
class LentBlocks {
 public:
  /// Limits on sizes and numbers.
  struct Limits {
    /// Smallest tensor in a block; smaller ones go through the socket, since a block costs more
    /// than it saves.
    std::uint64_t least_bytes = std::uint64_t{32} << 10;
    /// Bytes of blocks that hold tensors; beyond it tensors go through the socket, which keeps no
    /// copy.
    std::uint64_t most_lent_bytes = std::uint64_t{2} << 30;
    /// Bytes of blocks that hold none.
    std::uint64_t most_idle_bytes = std::uint64_t{256} << 20;
    std::size_t most_blocks = 1024;
  };

  LentBlocks() : LentBlocks(Limits{}) {}
  explicit LentBlocks(const Limits& limits) : limits_(limits) {}

  /// A block for a tensor of so many bytes; null if there is none.
  std::shared_ptr<MemoryBlock> lend(std::uint64_t bytes) noexcept;
  /// Removes idle blocks beyond most_idle_bytes. Returns the numbers of those that the receiver
  /// must unmap.
  std::vector<std::uint64_t> drop_idle();
  /// Removes all blocks, when the other worker is lost.
  void clear();

 private:
  const Limits limits_;
  Mutex mutex_;
  // Those that were lent longest ago come first.
  std::vector<std::shared_ptr<MemoryBlock>> blocks_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint64_t all_bytes_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_number_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

/// Blocks that another worker has lent to this one.
/// Threads: one at a time.
class BorrowedBlocks {
 public:
  /// Adds a block.
  /// Errors: as MemoryBlock; UsageError for a number in use.
  void add(std::uint64_t number, std::uint64_t bytes, UniqueFd file);
  /// The block of a number.
  /// Errors: UsageError if there is none, or for one of fewer bytes.
  const std::shared_ptr<MemoryBlock>& at(std::uint64_t number, std::uint64_t bytes) const;
  /// Removes a block; it is unmapped when its last tensor is destroyed.
  void drop(std::uint64_t number) { blocks_.erase(number); }

 private:
  std::unordered_map<std::uint64_t, std::shared_ptr<MemoryBlock>> blocks_;
};

}  // namespace lockstep::rpc::inline internal
