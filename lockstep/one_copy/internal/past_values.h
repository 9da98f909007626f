#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/memory/memory_file.h"

namespace lockstep::inline internal {

/// Copy-on-write for a memory file that several processes map and write to: while a process holds a
/// version of the memory, each process copies what it overwrites for the first time since. So the
/// holder can read the version at leisure, in another thread:
///
///     holder:  hold(…)  read the file at any time, then restore(…)   let_go(…)
///     writer:  begin_writes()   keep(a range)   overwrite it   keep(…) …
///
/// Nobody waits for anybody. A unit of 64 bytes has one bit: its old value is kept. A writer
/// copies, sets the bit and then overwrites; a holder reads and then looks at the bits. If it has
/// read a new byte, it finds the bit and takes the old value. A process that is killed leaves
/// either no bit, and the unit as it was, or the old value.
///
/// The file is separate from the memory. Zeroed, it is the initial state.
/// Threads: hold(), restore() and let_go() beside one thread that writes.
/// Errors: SystemError.
class PastValues {
 public:
  static constexpr std::size_t kMostHolders = 64;
  /// Which part of the memory no two processes write to at a time: a cache line.
  static constexpr std::uint64_t kUnitBytes = 64;

  static UniqueFd make_file(const std::string& name, std::uint64_t data_bytes);
  /// `is_alive`: whether the process with the number lives. Numbers are below kMostHolders.
  PastValues(UniqueFd file, std::uint64_t data_bytes, std::function<bool(std::size_t)> is_alive);
  PastValues(const PastValues&) = delete;
  PastValues& operator=(const PastValues&) = delete;

  int file() const { return file_.get(); }

  // Processes that read.

  /// Holds the memory's present version. False: another process holds an earlier one, or old values
  /// were lost. Afterwards check that the version is still the present one.
  bool hold(std::size_t holder, std::uint64_t version);
  void let_go(std::size_t holder) noexcept;
  /// Corrects `target`, into which this range of the memory was read since hold().
  /// Errors: SystemError if a process could not keep old values.
  void restore(std::uint64_t version, std::uint64_t offset, std::uint64_t bytes,
               std::byte* target) const;

  // Processes that write.

  /// Call it before writes of a new version, when that has been announced: a process that holds an
  /// earlier one has either been seen here, or sees the announcement.
  void begin_writes();
  /// Call it before a range of the memory is overwritten, in the same process that overwrites it.
  /// `data`: the memory. `offset` is a multiple of kUnitBytes. If memory is short, what is held is
  /// lost, which the holder finds.
  void keep(const std::byte* data, std::uint64_t offset, std::uint64_t bytes) noexcept {
    if (tag_ != 0) keep_units(data, offset, bytes);
  }

 private:
  struct Head;
  bool is_other_held(std::uint64_t serial) const;
  static constexpr std::uint64_t kUnitsOfWord = 32;
  static constexpr std::uint64_t kWordBytes = kUnitsOfWord * kUnitBytes;
  /// Memory for old values is taken in such pieces, and kept.
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;

  Head& head() const;
  std::atomic<std::uint64_t>& word(std::uint64_t number) const;
  void keep_units(const std::byte* data, std::uint64_t offset, std::uint64_t bytes) noexcept;
  void populate(std::uint64_t begin, std::uint64_t end);

  const UniqueFd file_;
  const std::uint64_t words_;   ///< Number: of each the upper half is the version's tag.
  const std::uint64_t values_;  ///< Where old values are, each as far from here as in the memory.
  const SharedMapping memory_;
  const std::function<bool(std::size_t)> is_alive_;
  std::vector<bool> populated_;  ///< By piece, by this process.
  std::uint64_t serial_ = 0;     ///< Of the version for which this process keeps old values.
  std::uint32_t tag_ = 0;        ///< 0: for none.
};

}  // namespace lockstep::inline internal
