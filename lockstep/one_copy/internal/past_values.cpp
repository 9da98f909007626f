#include "lockstep/one_copy/internal/past_values.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"

namespace lockstep::inline internal {
namespace {

constexpr std::uint64_t kPastHeadBytes = 64 * 1024;
constexpr std::size_t kMostBytesOfPastName = 200;

std::uint64_t units_in(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit;
}

// The words begin on a page of any size, and so do the values behind them.
std::uint64_t bytes_of_words(std::uint64_t words) {
  constexpr std::uint64_t kLargestPageBytes = 64 * 1024;
  return units_in(words * sizeof(std::uint64_t), kLargestPageBytes) * kLargestPageBytes;
}

// Versions count from 0, and 0 is none.
std::uint64_t serial_of(std::uint64_t version) {
  return version + 1;
}

// Of two versions that are held one after the other the tags differ.
std::uint32_t tag_of(std::uint64_t serial) {
  constexpr std::uint64_t kTags = 0xffffffff;
  return static_cast<std::uint32_t>(serial % kTags + 1);
}

// The bits of units of one word, below 32.
std::uint32_t bits_of(std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t below_end = (std::uint64_t{1} << end) - 1;
  return static_cast<std::uint32_t>(below_end & ~((std::uint64_t{1} << begin) - 1));
}

std::uint32_t bits_in(std::uint64_t word, std::uint32_t tag) {
  return word >> 32 == tag ? static_cast<std::uint32_t>(word) : 0;
}

// Calls `copy(begin, end)` with each run of set bits.
template <class Copy>
void visit_runs(std::uint32_t bits, const Copy& copy) {
  while (bits != 0) {
    const auto begin = static_cast<std::uint64_t>(std::countr_zero(bits));
    const auto length = static_cast<std::uint64_t>(std::countr_one(bits >> begin));
    copy(begin, begin + length);
    bits &= ~bits_of(begin, begin + length);
  }
}

}  // namespace

struct PastValues::Head {
  std::atomic<std::uint64_t> lost;  ///< The last version of which old values were lost.
  struct alignas(64) Holder {
    std::atomic<std::uint64_t> serial;
  };
  Holder holders[kMostHolders];
};

UniqueFd PastValues::make_file(const std::string& name, std::uint64_t data_bytes) {
  static_assert(sizeof(Head) <= kPastHeadBytes);
  const std::uint64_t words = units_in(data_bytes, kWordBytes);
  return make_memory_file(
      concat("lockstep saves of ", name).substr(0, kMostBytesOfPastName).c_str(),
      kPastHeadBytes + bytes_of_words(words) + data_bytes);
}

PastValues::PastValues(UniqueFd file, std::uint64_t data_bytes,
                       std::function<bool(std::size_t)> is_alive)
    : file_(std::move(file)),
      words_(units_in(data_bytes, kWordBytes)),
      values_(kPastHeadBytes + bytes_of_words(words_)),
      memory_(file_.get(), values_ + data_bytes),
      is_alive_(std::move(is_alive)),
      populated_(data_bytes / kPieceBytes + 1) {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  if (memory_file_bytes(file_.get()).value_or(0) < values_ + data_bytes) {
    throw SystemError("mapping the old values of a copy of a model", EINVAL);
  }
  memory_.populate(0, sizeof(Head));
}

PastValues::Head& PastValues::head() const {
  return *reinterpret_cast<Head*>(memory_.data());
}

std::atomic<std::uint64_t>& PastValues::word(std::uint64_t number) const {
  return reinterpret_cast<std::atomic<std::uint64_t>*>(memory_.data() + kPastHeadBytes)[number];
}

bool PastValues::hold(std::size_t holder, std::uint64_t version) {
  const std::uint64_t serial = serial_of(version);
  if (head().lost.load() == serial) return false;
  // First without a trace: a writer keeps the latest version that it finds, which must not be one
  // that is about to be given up.
  if (is_other_held(serial)) return false;
  head().holders[holder].serial.store(serial);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!is_other_held(serial)) return true;
  let_go(holder);
  return false;
}

bool PastValues::is_other_held(std::uint64_t serial) const {
  for (std::size_t holder = 0; holder < kMostHolders; ++holder) {
    const std::uint64_t held = head().holders[holder].serial.load();
    if (held != 0 && held != serial && is_alive_(holder)) return true;
  }
  return false;
}

void PastValues::let_go(std::size_t holder) noexcept {
  head().holders[holder].serial.store(0);
}

void PastValues::restore(std::uint64_t version, std::uint64_t offset, std::uint64_t bytes,
                         std::byte* target) const {
  // What was read was read before the bits.
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::uint32_t tag = tag_of(serial_of(version));
  const std::byte* const values = memory_.data() + values_;
  const std::uint64_t end = offset + bytes;
  for (std::uint64_t number = offset / kWordBytes; number * kWordBytes < end; ++number) {
    const std::uint64_t first = number * kWordBytes;
    const std::uint32_t kept = bits_in(word(number).load(std::memory_order_acquire), tag);
    visit_runs(kept, [&](std::uint64_t begin_unit, std::uint64_t end_unit) {
      const std::uint64_t begin_byte = std::max(first + begin_unit * kUnitBytes, offset);
      const std::uint64_t end_byte = std::min(first + end_unit * kUnitBytes, end);
      if (begin_byte >= end_byte) return;
      std::memcpy(target + (begin_byte - offset), values + begin_byte, end_byte - begin_byte);
    });
  }
  if (head().lost.load() == serial_of(version)) {
    throw SystemError("keeping what a step overwrites for a save", ENOMEM,
                      "a rank had no memory for it; the snapshot was not saved");
  }
}

void PastValues::begin_writes() {
  std::uint64_t serial = 0;
  for (std::size_t holder = 0; holder < kMostHolders; ++holder) {
    const std::uint64_t held = head().holders[holder].serial.load();
    if (held > serial && is_alive_(holder)) serial = held;
  }
  serial_ = serial;
  tag_ = serial == 0 || head().lost.load() == serial ? 0 : tag_of(serial);
}

void PastValues::keep_units(const std::byte* data, std::uint64_t offset,
                            std::uint64_t bytes) noexcept {
  if (bytes == 0) return;
  LOCKSTEP_ASSERT(offset % kUnitBytes == 0);
  const std::uint64_t end = (offset + bytes + kUnitBytes - 1) / kUnitBytes;
  try {
    populate(offset, end * kUnitBytes);
  } catch (const std::exception&) {
    head().lost.store(serial_);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    tag_ = 0;
    return;
  }
  std::byte* const values = memory_.data() + values_;
  for (std::uint64_t unit = offset / kUnitBytes; unit < end;) {
    const std::uint64_t number = unit / kUnitsOfWord;
    const std::uint64_t first = number * kUnitsOfWord;
    const std::uint64_t last = std::min(end, first + kUnitsOfWord);
    const std::uint32_t wanted = bits_of(unit - first, last - first);
    std::uint64_t seen = word(number).load(std::memory_order_acquire);
    visit_runs(
        wanted & ~bits_in(seen, tag_), [&](std::uint64_t begin_unit, std::uint64_t end_unit) {
          const std::uint64_t begin_byte = (first + begin_unit) * kUnitBytes;
          std::memcpy(values + begin_byte, data + begin_byte, (end_unit - begin_unit) * kUnitBytes);
        });
    failpoint("update.copied");
    // Others set the bits of their units.
    for (;;) {
      const std::uint32_t bits = bits_in(seen, tag_) | wanted;
      const std::uint64_t next = std::uint64_t{tag_} << 32 | bits;
      if (next == seen || word(number).compare_exchange_weak(seen, next)) break;
    }
    unit = last;
  }
  // Nothing is overwritten before the bits are set.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  failpoint("update.marked");
}

// Words are in the same order as what they are of.
void PastValues::populate(std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t piece = begin / kPieceBytes; piece * kPieceBytes < end; ++piece) {
    if (populated_[piece]) continue;
    const std::uint64_t first = piece * kPieceBytes;
    const std::uint64_t bytes = std::min(kPieceBytes, memory_.bytes() - values_ - first);
    memory_.populate(kPastHeadBytes + first / kWordBytes * sizeof(std::uint64_t),
                     kPieceBytes / kWordBytes * sizeof(std::uint64_t));
    memory_.populate(values_ + first, bytes);
    populated_[piece] = true;
  }
}

}  // namespace lockstep::inline internal
