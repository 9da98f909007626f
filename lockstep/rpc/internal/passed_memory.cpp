#include "lockstep/rpc/internal/passed_memory.h"

#include <algorithm>
#include <new>

#include "lockstep/base/error.h"

namespace lockstep::rpc::inline internal {
namespace {

// A page: elements begin where LibTorch's allocator would have them begin.
constexpr std::uint64_t kHeadBytes = 4096;
// Blocks of sizes that differ by less are of one size, so that tensors of about one size share
// them.
constexpr std::uint64_t kGranularity = std::uint64_t{64} << 10;
// Huge pages are of 2 MiB: a smaller block has none.
constexpr std::uint64_t kLeastForHugePages = std::uint64_t{4} << 20;
// A block may be so many times as large as its tensor.
constexpr std::uint64_t kMostWaste = 2;

UniqueFd checked(UniqueFd file, std::uint64_t bytes) {
  if (file.valid() && memory_file_bytes(file.get()) == kHeadBytes + bytes) return file;
  throw UsageError("it passes memory that is not there");
}

}  // namespace

MemoryBlock::MemoryBlock(std::uint64_t number, std::uint64_t bytes)
    : number_(number),
      bytes_(bytes),
      file_(make_memory_file("lockstep-rpc", kHeadBytes + bytes)),
      mapping_(file_.get(), kHeadBytes + bytes) {
  if (bytes >= kLeastForHugePages) mapping_.prefer_huge_pages();
  mapping_.populate(0, mapping_.bytes());
  lend();
}

MemoryBlock::MemoryBlock(std::uint64_t number, std::uint64_t bytes, UniqueFd file)
    : number_(number),
      bytes_(bytes),
      mapping_(checked(std::move(file), bytes).get(), kHeadBytes + bytes) {}

std::byte* MemoryBlock::data() const {
  return mapping_.data() + kHeadBytes;
}

std::atomic<std::uint32_t>& MemoryBlock::word() const {
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(mapping_.data());
}

std::shared_ptr<MemoryBlock> LentBlocks::lend(std::uint64_t bytes) noexcept {
  if (bytes < limits_.least_bytes) return nullptr;
  const std::uint64_t rounded = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  const MutexLock lock(mutex_);
  auto best = blocks_.end();
  std::uint64_t lent_bytes = 0;
  for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
    const std::uint64_t size = (*block)->bytes();
    if ((*block)->is_lent()) {
      lent_bytes += size;
    } else if (size >= bytes && size / kMostWaste <= rounded &&
               (best == blocks_.end() || size < (*best)->bytes())) {
      best = block;
    }
  }
  if (lent_bytes + bytes > limits_.most_lent_bytes) return nullptr;
  if (best != blocks_.end()) {
    (*best)->lend();
    std::rotate(best, best + 1, blocks_.end());
    return blocks_.back();
  }
  if (blocks_.size() == limits_.most_blocks) return nullptr;
  try {
    blocks_.push_back(std::make_shared<MemoryBlock>(next_number_, rounded));
    ++next_number_;
    all_bytes_ += rounded;
    return blocks_.back();
  } catch (const SystemError&) {  // Memory is short.
    return nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

std::vector<std::uint64_t> LentBlocks::drop_idle() {
  std::vector<std::uint64_t> dropped;
  const MutexLock lock(mutex_);
  if (all_bytes_ <= limits_.most_idle_bytes)
    return dropped;  // The usual case: no block is looked at.
  std::uint64_t idle_bytes = 0;
  for (const auto& block : blocks_) idle_bytes += block->is_lent() ? 0 : block->bytes();
  std::erase_if(blocks_, [&](const auto& block) LOCKSTEP_REQUIRES(mutex_) {
    if (idle_bytes <= limits_.most_idle_bytes || block->is_lent()) return false;
    idle_bytes -= block->bytes();
    all_bytes_ -= block->bytes();
    if (!block->file().valid()) dropped.push_back(block->number());
    return true;
  });
  return dropped;
}

void LentBlocks::clear() {
  const MutexLock lock(mutex_);
  blocks_.clear();
  all_bytes_ = 0;
}

void BorrowedBlocks::add(std::uint64_t number, std::uint64_t bytes, UniqueFd file) {
  constexpr std::uint64_t kSane = std::uint64_t{1} << 60;
  if (bytes > kSane || blocks_.contains(number)) {
    throw UsageError("it passes memory that cannot be");
  }
  blocks_.emplace(number, std::make_shared<MemoryBlock>(number, bytes, std::move(file)));
}

const std::shared_ptr<MemoryBlock>& BorrowedBlocks::at(std::uint64_t number,
                                                       std::uint64_t bytes) const {
  const auto found = blocks_.find(number);
  if (found == blocks_.end() || found->second->bytes() < bytes) {
    throw UsageError("it passes memory that was not lent");
  }
  return found->second;
}

}  // namespace lockstep::rpc::inline internal
