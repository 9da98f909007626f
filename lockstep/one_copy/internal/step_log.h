#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/one_copy/internal/step_plan.h"
#include "lockstep/os/memory/life_mark.h"
#include "lockstep/os/memory/memory_file.h"

namespace lockstep::inline internal {

/// What the ranks of a machine write about the steps of one copy, in memory that all of them map:
/// which rank has handed over its gradients, whether the step happens, how far each shard is
/// updated, and the old values of the current chunk (an undo log). If a rank is killed at any
/// instruction, the others find here how to finish its shard, or that nothing was changed.
///
/// Zeroed memory is the initial state. Steps are numbered from 1, ascending.
/// Threads: one at a time.
/// Lifetime: the memory must outlive it.
/// Errors: SystemError if memory for old values is short.
class StepLog {
 public:
  static constexpr std::size_t kMostRanks = 64;
  struct Sizes {
    int ranks = 1;
    std::uint64_t record_words = 0;  ///< Maximum of what a rank hands over.
    std::uint64_t pieces = 0;        ///< Maximum of a chunk.
    std::uint64_t undo_bytes = 0;    ///< Maximum of a chunk's old values.
  };
  /// A range of memory that a chunk overwrites.
  struct Piece {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };

  /// Size of the log, a multiple of the largest page.
  static std::uint64_t bytes(const Sizes& sizes);

  /// The log is in `memory`; pieces are ranges of `written`.
  StepLog(const SharedMapping& memory, const SharedMapping& written, const Sizes& sizes, int rank);
  /// As leave().
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // Membership.

  /// From now on peers notice when this process ends.
  void join();
  /// This rank writes no more: peers finish its shard.
  void leave() noexcept;
  bool is_present(int rank) const;
  bool all_are_present() const { return absent_ranks().empty(); }
  std::vector<int> absent_ranks() const;

  // Start of a step. A rank's record stays valid until it hands over a second time.

  std::span<std::int64_t> own_record(std::uint64_t step) const { return record(rank_, step); }
  std::span<std::int64_t> record(int rank, std::uint64_t step) const;
  void hand_over(std::uint64_t step);
  bool has_handed_over(int rank, std::uint64_t step) const;
  /// For a rank that could not wait for the others as usual: whether the step can happen. Waits for
  /// live ranks, at most until the deadline.
  Decision await_hand_over(std::uint64_t step, Deadline deadline) const;
  /// Decides whether the step happens, unless that is decided. Returns the decision.
  Decision decide(std::uint64_t step, Decision wanted);
  bool is_decided(std::uint64_t step, Decision decision) const;
  /// Of a void step: the rank that decided it.
  int decider() const;

  // Shards.

  /// Allocates the memory for old values of this rank's shard, at most `share_bytes` per chunk, so
  /// that no chunk fails for lack of it.
  void prepare_undo(std::uint64_t share_bytes) {
    populate(rank_, std::min(share_bytes, sizes_.undo_bytes));
  }
  bool is_complete(int of_share, std::uint64_t step) const {
    return position(of_share, step).stage == SharePosition::Stage::kComplete;
  }
  /// Updates shards of lost ranks until all shards of the step are complete. Returns false if a
  /// live rank has not completed its own at the deadline. `run_shard(rank)`: creates a ShareRun and
  /// completes it.
  template <class RunShare>
  bool finish_shares(std::uint64_t step, Deadline deadline, RunShare&& run_shard) {
    for (;;) {
      const int share = take_over_a_share(step);
      if (share >= 0) {
        run_shard(share);
      } else if (share == kNoneLeft) {
        return true;
      } else {
        if (deadline.passed()) return false;
        sleep();
      }
    }
  }

 private:
  friend class ShareRun;
  static constexpr int kNoneLeft = -1;
  static constexpr int kWaits = -2;

  struct Share;
  struct Head;
  /// Offsets, and sizes per rank or shard.
  struct Places {
    std::uint64_t shares, records, pieces, undo, end;
    std::uint64_t record_bytes, pieces_bytes, undo_bytes;
  };
  static Places places_of(const Sizes& sizes);
  Head& head() const;
  Share& share(int rank) const;
  std::byte* undo(int rank) const;
  Piece* pieces(int rank) const;

  SharePosition position(int of_share, std::uint64_t step) const;
  void set_position(int of_share, const SharePosition& position);
  int take_over_a_share(std::uint64_t step);
  void populate(int of_share, std::uint64_t undo_bytes);
  void keep(int of_share, std::span<const Piece> overwritten);
  void restore(int of_share);
  void wake_peers();
  void sleep() const;

  const SharedMapping& memory_;
  const SharedMapping& written_;
  const Sizes sizes_;
  const Places places_;
  const int rank_;
  bool has_joined_ = false;
  std::vector<std::uint64_t> populated_;  ///< By share, of the old values, by this process.
};

/// Updates a shard of a step chunk by chunk: this rank's, or the rest of a lost rank's. The chunks
/// of a shard are the same on every rank.
/// Lifetime: the log must outlive it.
/// Errors: SystemError as StepLog; what the functions throw.
class ShareRun {
 public:
  /// Restores a partly updated chunk.
  ShareRun(StepLog& log, std::uint64_t step, int share);

  int share() const { return share_; }
  /// Calls `write`, which writes what chunks read, and may be called again after it was cut short.
  template <class Write>
  void prepare(Write&& write) {
    if (position_.stage != SharePosition::Stage::kUnprepared) return;
    write();
    set_prepared();
  }
  /// Calls `write`, which overwrites `pieces`, unless this chunk was done before.
  template <class Write>
  void run_chunk(std::span<const StepLog::Piece> pieces, Write&& write) {
    if (next_chunk_++ < position_.chunks) return;
    begin_chunk(pieces);
    write();
    end_chunk();
  }
  void complete();

 private:
  void set_prepared();
  void begin_chunk(std::span<const StepLog::Piece> pieces);
  void end_chunk();

  StepLog& log_;
  const int share_;
  SharePosition position_;
  std::uint32_t next_chunk_ = 0;
};

}  // namespace lockstep::inline internal
