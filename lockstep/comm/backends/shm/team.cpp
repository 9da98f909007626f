#include "lockstep/comm/backends/shm/team.h"

#include <vector>

#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/memory/futex.h"

namespace lockstep::shm {
namespace {

// Bounds how late a death is noticed by a rank that sleeps.
constexpr std::chrono::milliseconds kSleepSlice{2};

// Counts wrap after 2^32 rounds; two that are compared are less than 2^31 apart.
constexpr std::uint32_t kCatchUpEvery = std::uint32_t{1} << 30;

bool reached(std::uint32_t count, std::uint32_t goal) {
  return static_cast<std::int32_t>(count - goal) >= 0;
}

void raise_to(std::uint32_t& count, std::uint32_t value) {
  if (!reached(count, value)) count = value;
}

Store best_store(Placement placement) {
  return placement == Placement::kFar ? Store::kNonTemporal : Store::kOrdinary;
}

}  // namespace

Team::Team(std::shared_ptr<Segment> segment, int rank, std::string group_name,
           std::vector<int> numbers)
    : segment_(std::move(segment)),
      rank_(rank),
      ranks_(segment_->layout().ranks()),
      group_name_(std::move(group_name)),
      numbers_(std::move(numbers)),
      owner_(::getpid()),
      own_(control(rank)),
      next_round_(own_.released.load()),
      released_(next_round_),
      caught_up_(next_round_) {
  seen_.fill({.posted = next_round_, .reduced = next_round_, .released = next_round_});
  own_.pid.store(static_cast<std::uint32_t>(owner_));
  own_.life.hold();
  own_.standing.store(static_cast<std::uint32_t>(Standing::kPresent));
}

Team::~Team() {
  if (::getpid() != owner_) return;
  std::uint32_t present = static_cast<std::uint32_t>(Standing::kPresent);
  own_.standing.compare_exchange_strong(present, static_cast<std::uint32_t>(Standing::kLeft));
  wake_peers();
  own_.life.let_go();
}

bool Team::may_spin() {
  std::array<const Processors*, kMostRanks> all{};
  for (int peer = 0; peer < ranks_; ++peer) {
    all[static_cast<std::size_t>(peer)] = &control(peer).processors;
  }
  return run_side_by_side({all.data(), static_cast<std::size_t>(ranks_)});
}

bool Team::may_post(bool with_slot) {
  const std::uint32_t depth = with_slot ? kSlots : kEntries;
  const std::uint32_t goal = next_round_ - depth + 1;
  for (int peer = 0; peer < ranks_; ++peer) {
    Seen& seen = seen_[static_cast<std::size_t>(peer)];
    // Before the first `depth` rounds the goal is below zero, which every count has reached.
    if (reached(seen.released, goal)) continue;
    raise_to(seen.released, control(peer).released.load());
    if (reached(seen.released, goal)) continue;
    blocked_on_ = peer;
    return false;
  }
  return true;
}

void Team::post() {
  Entry& entry = entry_to_post();
  entry.released = released_;
  ++next_round_;
  entry.sequence.store(next_round_);
  wake_peers();
}

void Team::set_reduced(std::uint32_t rounds) {
  own_.reduced.store(rounds);
  wake_peers();
}

void Team::set_released(std::uint32_t rounds) {
  released_ = rounds;
  if (rounds - caught_up_ >= kCatchUpEvery) catch_up();
  own_.released.store(rounds);
  wake_peers();
}

// Most collectives have nothing to reduce in parts: without this the counts of reduced rounds would
// fall behind until they seemed to be ahead. What is released has been reduced, by all ranks.
void Team::catch_up() {
  caught_up_ = released_;
  if (!reached(own_.reduced.load(), released_)) own_.reduced.store(released_);
  for (Seen& seen : seen_) raise_to(seen.reduced, released_);
}

bool Team::all_posted(std::uint32_t round) {
  const std::uint32_t goal = round + 1;
  for (int peer = 0; peer < ranks_; ++peer) {
    Seen& seen = seen_[static_cast<std::size_t>(peer)];
    if (reached(seen.posted, goal)) continue;
    const Entry& theirs = entry(peer, round);
    if (fetch(peer, theirs.sequence, goal, looked_for_posted_) != goal) {
      blocked_on_ = peer;
      return false;
    }
    seen.posted = goal;
    raise_to(seen.released, theirs.released);
  }
  return true;
}

void Team::set_placement(Placement placement) {
  store_ = best_store(placement);
  if (ranks_ > 1 && may_spin()) watched_ = rank_ == 0 ? 1 : rank_ - 1;
}

// Now and then takes the time of the line's way from the watched peer. Only a first look that finds
// what it looks for tells that: any other finds the line here, or waits for the peer to write.
std::uint32_t Team::fetch(int peer, const std::atomic<std::uint32_t>& count, std::uint32_t goal,
                          std::uint32_t& looked_for) {
  constexpr std::uint32_t kEvery = 8;
  if (peer != watched_ || goal % kEvery != 0 || goal == looked_for) return count.load();
  looked_for = goal;
  const auto start = Deadline::Clock::now();
  const std::uint32_t found = count.load();
  const auto fetch_time = Deadline::Clock::now() - start;
  if (!reached(found, goal)) return found;
  if (const auto placement = distance_.add(fetch_time)) store_ = best_store(*placement);
  return found;
}

bool Team::all_reduced(std::uint32_t round) {
  const std::uint32_t goal = round + 1;
  for (int peer = 0; peer < ranks_; ++peer) {
    Seen& seen = seen_[static_cast<std::size_t>(peer)];
    if (reached(seen.reduced, goal)) continue;
    seen.reduced = fetch(peer, control(peer).reduced, goal, looked_for_reduced_);
    if (reached(seen.reduced, goal)) continue;
    blocked_on_ = peer;
    return false;
  }
  return true;
}

void Team::wake_peers() {
  // The counter before and this load are sequentially consistent, as are the waiter's increment and
  // its last look at the counter: one of the two sees the other.
  if (own_.waiters.load() == 0) [[likely]]
    return;
  own_.bell.fetch_add(1);
  futex_wake_all(own_.bell);
}

void Team::sleep_on(Control& peer, std::uint32_t bell) {
  futex_wait(peer.bell, bell, kSleepSlice);
}

Verdict Team::check_peers(int awaited) {
  const Verdict told = Verdict::of(own_.verdict.load());
  if (told.reason != Reason::kNone) return told;
  for (int peer = 0; peer < ranks_; ++peer) {
    Control& theirs = control(peer);
    // Looked at in this order, since who leaves says so before it lets go of its mark.
    const bool is_held = theirs.life.is_held();
    const auto standing = static_cast<Standing>(theirs.standing.load());
    Reason reason = Reason::kNone;
    if (standing == Standing::kAborted) {
      reason = Reason::kAborted;
    } else if (standing == Standing::kLeft) {
      // Who left in good order may have posted all that is needed: only who waits for it fails.
      if (peer == awaited) reason = Reason::kLeft;
    } else if (!is_held) {
      reason = Reason::kDied;
    }
    if (reason == Reason::kNone) continue;
    const Verdict verdict{.reason = reason, .rank = peer};
    if (reason != Reason::kLeft) publish_failure(verdict);
    return verdict;
  }
  return {};
}

void Team::publish_failure(Verdict verdict) {
  for (int peer = 0; peer < ranks_; ++peer) {
    Control& theirs = control(peer);
    std::uint32_t none = 0;
    theirs.verdict.compare_exchange_strong(none, verdict.word());
  }
  // Whoever sleeps sleeps on somebody's bell.
  for (int peer = 0; peer < ranks_; ++peer) {
    Control& theirs = control(peer);
    theirs.bell.fetch_add(1);
    futex_wake_all(theirs.bell);
  }
}

void Team::abort() {
  own_.standing.store(static_cast<std::uint32_t>(Standing::kAborted));
  publish_failure({.reason = Reason::kAborted, .rank = rank_});
}

std::string Team::describe_rank(int rank) {
  return concat("rank ", number_of(rank), " (pid ", control(rank).pid.load(), ")");
}

}  // namespace lockstep::shm
