#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/backends/shm/control.h"
#include "lockstep/comm/backends/shm/distance_watch.h"
#include "lockstep/comm/backends/shm/layout.h"
#include "lockstep/comm/backends/shm/segment.h"
#include "lockstep/comm/kernels/copy_kernel.h"

namespace lockstep::shm {

/// One rank's view of its group: what the others have posted, what it posts itself, and which of
/// them live. Collectives consist of rounds, numbered through the life of the group. In a round a
/// rank posts its entry, and with it a slot of data or the offset of its tensor. When all have
/// posted, it may reduce its part. When it needs no data of its peers any more, it releases the
/// round. Each of the three happens in the order of rounds.
/// Threads: one at a time, except abort() and wake_peers().
/// Errors: none from queries; check_peers() reports failures.
class Team {
 public:
  /// Writes this rank's control block; the segment must be populated. All ranks must have
  /// constructed theirs before the first post: see connect(). `numbers`: ranks as errors name them;
  /// empty: their own numbers.
  Team(std::shared_ptr<Segment> segment, int rank, std::string group_name,
       std::vector<int> numbers = {});
  /// Leaves the group, and notifies peers that wait for this rank. In a forked copy of the process
  /// no effect.
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  /// A rank as errors name it.
  int number_of(int rank) const {
    return numbers_.empty() ? rank : numbers_[static_cast<std::size_t>(rank)];
  }
  const std::string& group_name() const { return group_name_; }
  const Layout& layout() const { return segment_->layout(); }
  const std::shared_ptr<Segment>& segment() const { return segment_; }

  // Posting.

  /// Number of this rank's next round.
  std::uint32_t next_round() const { return next_round_; }
  /// Whether every peer has released the earlier round in the next round's entry, and in its slot
  /// if it needs one.
  bool may_post(bool with_slot);
  Entry& entry_to_post() { return entry(rank_, next_round_); }
  /// Name of the next round's collective, for errors.
  void name_round(const CallName& name) { own_.names[next_round_ % kEntries] = name; }
  void post();
  void set_reduced(std::uint32_t rounds);
  void set_released(std::uint32_t rounds);

  // Looking. If the result is false, blocked_on() is a rank that has not got so far.

  bool all_posted(std::uint32_t round);
  bool all_reduced(std::uint32_t round);
  int blocked_on() const { return blocked_on_; }

  Entry& entry(int rank, std::uint32_t round) {
    return *reinterpret_cast<Entry*>(at(layout().entry(rank, round)));
  }
  /// For a round that has a name.
  const CallName& name_of(int rank, std::uint32_t round) {
    return control(rank).names[round % kEntries];
  }
  std::byte* slot(int rank, std::uint32_t round) { return at(layout().slot(rank, round)); }
  MessageCounters& messages(int rank, int peer) {
    return *reinterpret_cast<MessageCounters*>(at(layout().message_counters(rank, peer)));
  }
  std::byte* at(std::uint64_t offset) { return segment_->at(offset); }
  /// [offset, offset + bytes) of any rank's heap.
  /// Errors: SystemError.
  std::byte* heap_at(std::uint64_t offset, std::uint64_t bytes) {
    return segment_->heap_at(offset, bytes);
  }

  /// Publishes this rank's processors; call it before connect() returns.
  void set_processors(const Processors& own) { own_.processors = own; }
  /// Whether spinning keeps no other rank from running.
  bool may_spin();

  /// Cache line for measuring the distance of rank 1 from rank 0.
  std::atomic<std::uint32_t>& ping_line() { return control(0).ping; }

  /// The kind of stores that reaches peers fastest.
  Store store() const { return store_; }
  /// Distance of the ranks when the group is formed. If each has a processor, this rank watches the
  /// distance of one of its peers from now on, because it may change at any time.
  void set_placement(Placement placement);

  // Waiting.

  /// From its construction on no advance of the peer is missed: check again, then sleep.
  class Sleep {
   public:
    Sleep(Team& team, int peer) : peer_(team.control(peer)) {
      peer_.waiters.fetch_add(1);
      bell_ = peer_.bell.load();
    }
    ~Sleep() { peer_.waiters.fetch_sub(1); }
    Sleep(const Sleep&) = delete;
    Sleep& operator=(const Sleep&) = delete;

    /// Sleeps until the peer advances or a few milliseconds have passed. May run concurrently with
    /// all other methods of the team.
    void until_woken() const { sleep_on(peer_, bell_); }

   private:
    Control& peer_;
    std::uint32_t bell_;
  };

  /// Wakes peers that sleep until this rank advances.
  void wake_peers();

  /// Whether the group works: kNone, or why not. Checks every peer's life; a rank that has left in
  /// good order is a failure only if it is `awaited`.
  Verdict check_peers(int awaited);
  /// Notifies all ranks that the group has failed.
  void publish_failure(Verdict verdict);
  /// Makes all waits of this group end.
  /// Threads: any.
  void abort();
  /// "rank 3 (pid 4711)"
  std::string describe_rank(int rank);

 private:
  Control& control(int rank) { return *reinterpret_cast<Control*>(at(layout().control(rank))); }
  std::uint32_t fetch(int peer, const std::atomic<std::uint32_t>& count, std::uint32_t goal,
                      std::uint32_t& looked_for);
  static void sleep_on(Control& peer, std::uint32_t bell);
  void catch_up();

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  const int ranks_;
  const std::string group_name_;
  const std::vector<int> numbers_;
  const pid_t owner_;  ///< the process that created this; a forked copy is not in the group
  Store store_ = Store::kOrdinary;
  int watched_ = -1;  ///< the peer whose distance is watched; -1: none
  /// Last rounds of the watched peer that were looked for.
  std::uint32_t looked_for_posted_ = 0;
  std::uint32_t looked_for_reduced_ = 0;
  DistanceWatch distance_;
  Control& own_;
  int blocked_on_ = 0;
  std::uint32_t next_round_;  // at the start what the memory says: 0, but in tests of large counts
  std::uint32_t released_;
  std::uint32_t caught_up_;  ///< where counts that nothing had raised were raised last
  /// Counts of each rank that this rank has read; it reads a peer's memory only for higher ones.
  struct Seen {
    std::uint32_t posted = 0;
    std::uint32_t reduced = 0;
    std::uint32_t released = 0;
  };
  std::array<Seen, kMostRanks> seen_;
};

}  // namespace lockstep::shm
