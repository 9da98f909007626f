#include "lockstep/one_copy/internal/step_log.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/os/memory/futex.h"

namespace lockstep::inline internal {
namespace {

constexpr std::uint64_t kLineBytes = 64;
// Of any page that a kernel has.
constexpr std::uint64_t kPageBytes = 64 * 1024;
// Bounds how late a rank that sleeps notices what no peer wakes it for.
constexpr std::chrono::milliseconds kSleepSlice{2};

std::uint64_t round_up_to(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::uint64_t decision_word(std::uint64_t step, int rank, Decision decision) {
  return step << 16 | static_cast<std::uint64_t>(rank) << 8 | static_cast<std::uint64_t>(decision);
}

std::uint64_t runner_word(std::uint64_t step, int rank) {
  return step << 8 | static_cast<std::uint64_t>(rank);
}

}  // namespace

struct StepLog::Head {
  std::atomic<std::uint64_t> decision;
  alignas(kLineBytes) std::atomic<std::uint32_t> bell;
};

struct StepLog::Share {
  LifeMark life;  ///< Of the rank.
  alignas(kLineBytes) std::atomic<std::uint64_t> handed_over;
  /// Written by the rank that runs the share.
  alignas(kLineBytes) std::atomic<std::uint64_t> position;
  std::uint64_t piece_count;
  /// Of the step in which a rank other than the share's own has taken it over.
  alignas(kLineBytes) std::atomic<std::uint64_t> runner;
};

// Head | shares | records, two of each rank | pieces of each share || undo of each share
StepLog::Places StepLog::places_of(const Sizes& sizes) {
  const auto ranks = static_cast<std::uint64_t>(sizes.ranks);
  Places at{};
  at.record_bytes = round_up_to(sizes.record_words * sizeof(std::int64_t), kLineBytes);
  at.pieces_bytes = round_up_to(sizes.pieces * sizeof(StepLog::Piece), kLineBytes);
  at.undo_bytes = round_up_to(sizes.undo_bytes, kPageBytes);
  at.shares = sizeof(Head);
  at.records = at.shares + ranks * sizeof(Share);
  at.pieces = at.records + 2 * ranks * at.record_bytes;
  at.undo = round_up_to(at.pieces + ranks * at.pieces_bytes, kPageBytes);
  at.end = at.undo + ranks * at.undo_bytes;
  return at;
}

std::uint64_t StepLog::bytes(const Sizes& sizes) {
  return places_of(sizes).end;
}

StepLog::StepLog(const SharedMapping& memory, const SharedMapping& written, const Sizes& sizes,
                 int rank)
    : memory_(memory),
      written_(written),
      sizes_(sizes),
      places_(places_of(sizes)),
      rank_(rank),
      populated_(static_cast<std::size_t>(sizes.ranks)) {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  LOCKSTEP_ASSERT(static_cast<std::size_t>(sizes.ranks) <= kMostRanks);
  LOCKSTEP_ASSERT(places_.end <= memory.bytes());
  memory_.populate(0, places_.undo);
}

StepLog::~StepLog() {
  leave();
}

StepLog::Head& StepLog::head() const {
  return *reinterpret_cast<Head*>(memory_.data());
}

StepLog::Share& StepLog::share(int rank) const {
  return *reinterpret_cast<Share*>(memory_.data() + places_.shares +
                                   static_cast<std::uint64_t>(rank) * sizeof(Share));
}

std::span<std::int64_t> StepLog::record(int rank, std::uint64_t step) const {
  const std::uint64_t number = 2 * static_cast<std::uint64_t>(rank) + step % 2;
  auto* const words = reinterpret_cast<std::int64_t*>(memory_.data() + places_.records +
                                                      number * places_.record_bytes);
  return {words, sizes_.record_words};
}

StepLog::Piece* StepLog::pieces(int rank) const {
  return reinterpret_cast<Piece*>(memory_.data() + places_.pieces +
                                  static_cast<std::uint64_t>(rank) * places_.pieces_bytes);
}

std::byte* StepLog::undo(int rank) const {
  return memory_.data() + places_.undo + static_cast<std::uint64_t>(rank) * places_.undo_bytes;
}

void StepLog::join() {
  share(rank_).life.hold();
  has_joined_ = true;
}

void StepLog::leave() noexcept {
  if (!has_joined_) return;
  has_joined_ = false;
  share(rank_).life.let_go();
  wake_peers();
}

bool StepLog::is_present(int rank) const {
  return share(rank).life.is_held();
}

std::vector<int> StepLog::absent_ranks() const {
  std::vector<int> absent;
  for (int rank = 0; rank < sizes_.ranks; ++rank) {
    if (!is_present(rank)) absent.push_back(rank);
  }
  return absent;
}

void StepLog::hand_over(std::uint64_t step) {
  failpoint("update.begin");
  share(rank_).handed_over.store(step, std::memory_order_release);
  failpoint("update.handed");
}

bool StepLog::has_handed_over(int rank, std::uint64_t step) const {
  return share(rank).handed_over.load(std::memory_order_acquire) >= step;
}

Decision StepLog::await_hand_over(std::uint64_t step, Deadline deadline) const {
  std::array<RankInStep, kMostRanks> ranks;
  for (;;) {
    // Life first: what a rank that is gone has written is then final.
    for (int rank = 0; rank < sizes_.ranks; ++rank) {
      RankInStep& seen = ranks[static_cast<std::size_t>(rank)];
      seen.is_present = is_present(rank);
      seen.has_handed_over = has_handed_over(rank, step);
    }
    const Decision wanted = decide_step({ranks.data(), static_cast<std::size_t>(sizes_.ranks)});
    if (wanted != Decision::kOpen) return wanted;
    if (deadline.passed()) return Decision::kVoid;
    sleep();
  }
}

Decision StepLog::decide(std::uint64_t step, Decision wanted) {
  std::uint64_t word = head().decision.load();
  for (;;) {
    if (word >> 16 == step) return static_cast<Decision>(word & 0xff);
    // A peer goes on to another step only where this one is void, or needs nothing of this rank.
    if (word >> 16 > step) return Decision::kVoid;
    if (head().decision.compare_exchange_weak(word, decision_word(step, rank_, wanted))) {
      return wanted;
    }
  }
}

bool StepLog::is_decided(std::uint64_t step, Decision decision) const {
  const std::uint64_t word = head().decision.load();
  return word >> 16 == step && static_cast<Decision>(word & 0xff) == decision;
}

int StepLog::decider() const {
  return static_cast<int>(head().decision.load() >> 8 & 0xff);
}

SharePosition StepLog::position(int of_share, std::uint64_t step) const {
  return SharePosition::in_step(step, share(of_share).position.load(std::memory_order_acquire));
}

void StepLog::set_position(int of_share, const SharePosition& position) {
  share(of_share).position.store(position.word(), std::memory_order_release);
  // Else the compiler could write the old values of the next chunk before the position.
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

// Returns a share that this rank runs from now on, kNoneLeft or kWaits.
int StepLog::take_over_a_share(std::uint64_t step) {
  int found = kNoneLeft;
  for (int of_share = 0; of_share < sizes_.ranks; ++of_share) {
    std::uint64_t word = share(of_share).runner.load(std::memory_order_acquire);
    const int runner = word >> 8 == step ? static_cast<int>(word & 0xff) : of_share;
    const bool runner_is_present = is_present(runner);
    const ShareTask task = plan_share(position(of_share, step), runner_is_present);
    if (task == ShareTask::kNothing) continue;
    if (task == ShareTask::kTakeOver) {
      // Its mark may be let go a moment before its other threads stop.
      LifeMark::wait_for_stopped_threads();
      if (share(of_share).runner.compare_exchange_strong(word, runner_word(step, rank_))) {
        failpoint("update.taken");
        return of_share;
      }
    }
    found = kWaits;
  }
  return found;
}

void StepLog::populate(int of_share, std::uint64_t undo_bytes) {
  std::uint64_t& populated = populated_[static_cast<std::size_t>(of_share)];
  if (undo_bytes <= populated) return;
  memory_.populate(static_cast<std::uint64_t>(undo(of_share) - memory_.data()), undo_bytes);
  populated = undo_bytes;
}

void StepLog::keep(int of_share, std::span<const Piece> overwritten) {
  LOCKSTEP_ASSERT(overwritten.size() <= sizes_.pieces);
  std::uint64_t total = 0;
  for (const Piece& piece : overwritten) total += piece.bytes;
  LOCKSTEP_ASSERT(total <= sizes_.undo_bytes);
  populate(of_share, total);
  std::byte* target = undo(of_share);
  for (const Piece& piece : overwritten) {
    std::memcpy(target, written_.data() + piece.offset, piece.bytes);
    target += piece.bytes;
  }
  std::ranges::copy(overwritten, pieces(of_share));
  share(of_share).piece_count = overwritten.size();
}

void StepLog::restore(int of_share) {
  const std::byte* source = undo(of_share);
  const Piece* const first = pieces(of_share);
  for (std::uint64_t i = 0; i < share(of_share).piece_count; ++i) {
    std::memcpy(written_.data() + first[i].offset, source, first[i].bytes);
    source += first[i].bytes;
  }
}

void StepLog::wake_peers() {
  head().bell.fetch_add(1);
  futex_wake_all(head().bell);
}

void StepLog::sleep() const {
  futex_wait(head().bell, head().bell.load(), kSleepSlice);
}

ShareRun::ShareRun(StepLog& log, std::uint64_t step, int share)
    : log_(log), share_(share), position_(log.position(share, step)) {
  if (position_.stage != SharePosition::Stage::kTorn) return;
  log_.restore(share_);
  position_.stage = SharePosition::Stage::kSettled;
  log_.set_position(share_, position_);
  failpoint("update.restored");
}

void ShareRun::set_prepared() {
  position_.stage = SharePosition::Stage::kSettled;
  log_.set_position(share_, position_);
  failpoint("update.prepared");
}

void ShareRun::begin_chunk(std::span<const StepLog::Piece> pieces) {
  log_.keep(share_, pieces);
  failpoint("update.kept");
  position_.stage = SharePosition::Stage::kTorn;
  log_.set_position(share_, position_);
  // Else the processor or the compiler could write new values before the position.
  std::atomic_thread_fence(std::memory_order_release);
  failpoint("update.begun");
}

void ShareRun::end_chunk() {
  failpoint("update.written");
  LOCKSTEP_ASSERT(position_.chunks < SharePosition::kMostChunks);
  position_.stage = SharePosition::Stage::kSettled;
  ++position_.chunks;
  log_.set_position(share_, position_);
  failpoint("update.chunk");
}

void ShareRun::complete() {
  position_.stage = SharePosition::Stage::kComplete;
  log_.set_position(share_, position_);
  failpoint("update.complete");
}

}  // namespace lockstep::inline internal
