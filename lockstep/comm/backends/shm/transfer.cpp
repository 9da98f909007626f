#include "lockstep/comm/backends/shm/transfer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/kernels/copy_kernel.h"

namespace lockstep::shm {
namespace {

// In front of the parts of a slot where sizes differ, for each rank: how many bytes go there, and
// how many are expected from there.
struct PairSizes {
  std::uint64_t sent_bytes = 0;
  std::uint64_t expected_bytes = 0;
};
constexpr std::uint64_t kSizesBytes = kMostRanks * sizeof(PairSizes);

class Transfer final : public Operation {
 public:
  explicit Transfer(TransferPlan plan)
      : Operation(plan.call),
        plan_(std::move(plan)),
        parts_offset_(plan_.sizes_differ ? kSizesBytes : 0),
        part_bytes_((kSlotBytes - parts_offset_) / static_cast<std::uint64_t>(plan_.parts) /
                    kLineBytes * kLineBytes),
        rounds_(rounds_for(plan_.longest_bytes)),
        rounds_known_(!plan_.sizes_differ) {}

  Progress post(Team& team) override {
    if (posted_ == rounds_ || (posted_ > 0 && !rounds_known_)) {
      if (!learn_rounds(team)) return Progress::kNone;
      if (posted_ == rounds_) return Progress::kDone;
    }
    if (!team.may_post(!plan_.outgoing.empty())) return Progress::kNone;
    if (posted_ == 0) {
      first_ = team.next_round();
      write_call(team);
    }
    std::byte* const slot = team.slot(team.rank(), team.next_round());
    if (plan_.sizes_differ && posted_ == 0) tell_sizes(slot, team.rank());
    for (const Outgoing& piece : plan_.outgoing) {
      const Range window = window_of(piece.bytes, posted_);
      lockstep::copy(slot + part_offset(piece.part), piece.data + window.begin, window.bytes,
                     team.store());
    }
    team.post();
    ++posted_;
    return rounds_known_ && posted_ == rounds_ ? Progress::kDone : Progress::kSome;
  }

  Progress finish(Team& team) override {
    if (finished_ == posted_ || !rounds_known_) return Progress::kNone;
    const std::uint32_t round = first_ + finished_;
    if (finished_ == 0 ? !all_called(team, round) : !team.all_posted(round)) return Progress::kNone;
    if (finished_ == 0 && plan_.own.target != plan_.own.source) {
      lockstep::copy(plan_.own.target, plan_.own.source, plan_.own.bytes);
    }
    for (const Incoming& piece : plan_.incoming) {
      const Range window = window_of(piece.bytes, finished_);
      lockstep::copy(piece.data + window.begin,
                     team.slot(piece.peer, round) + part_offset(piece.part), window.bytes);
    }
    for (const Reduced& piece : plan_.reduced) reduce_window(team, round, piece);
    team.set_released(round + 1);
    return ++finished_ == rounds_ ? Progress::kDone : Progress::kSome;
  }

 private:
  // One round even for nothing: in it the ranks see that they agree.
  std::uint32_t rounds_for(std::uint64_t longest_bytes) const {
    const std::uint64_t rounds = (longest_bytes + part_bytes_ - 1) / part_bytes_;
    return static_cast<std::uint32_t>(std::max<std::uint64_t>(rounds, 1));
  }

  std::uint64_t part_offset(int part) const {
    return parts_offset_ + static_cast<std::uint64_t>(part) * part_bytes_;
  }

  // What of a piece passes in the round of that number: nothing once it is through.
  Range window_of(std::uint64_t bytes, std::uint32_t round) const {
    const std::uint64_t begin = std::min(round * part_bytes_, bytes);
    return {.begin = begin, .bytes = std::min(part_bytes_, bytes - begin)};
  }

  void tell_sizes(std::byte* slot, int rank) const {
    std::array<PairSizes, kMostRanks> sizes{};
    for (const Outgoing& piece : plan_.outgoing) {
      sizes[static_cast<std::size_t>(piece.part)].sent_bytes = piece.bytes;
    }
    for (const Incoming& piece : plan_.incoming) {
      sizes[static_cast<std::size_t>(piece.peer)].expected_bytes = piece.bytes;
    }
    sizes[static_cast<std::size_t>(rank)] = {.sent_bytes = plan_.own.bytes,
                                             .expected_bytes = plan_.own.expected_bytes};
    std::memcpy(slot, sizes.data(), sizeof sizes);
  }

  PairSizes told_sizes(Team& team, int rank, int peer) const {
    PairSizes sizes;
    std::memcpy(&sizes, team.slot(rank, first_) + static_cast<std::size_t>(peer) * sizeof sizes,
                sizeof sizes);
    return sizes;
  }

  // The longest piece of all decides how many rounds there are. Every rank looks at every pair, so
  // that all find out when one does not fit.
  bool learn_rounds(Team& team) {
    if (rounds_known_) return true;
    if (!all_called(team, first_)) return false;
    std::uint64_t longest = 0;
    for (int source = 0; source < team.ranks(); ++source) {
      for (int target = 0; target < team.ranks(); ++target) {
        const std::uint64_t sent = told_sizes(team, source, target).sent_bytes;
        const std::uint64_t expected = told_sizes(team, target, source).expected_bytes;
        longest = std::max(longest, sent);
        if (sent == expected) continue;
        const std::size_t unit = element_bytes(call().element);
        throw UsageError(concat("rank ", team.number_of(source), " sends ", sent / unit,
                                " elements to rank ", team.number_of(target), ", which expects ",
                                expected / unit,
                                "; make the output splits match the peers' input splits"));
      }
    }
    rounds_ = rounds_for(longest);
    rounds_known_ = true;
    return true;
  }

  void reduce_window(Team& team, std::uint32_t round, const Reduced& piece) {
    const Range window = window_of(piece.bytes, finished_);
    std::array<const std::byte*, kMostRanks> sources;
    for (int rank = 0; rank < team.ranks(); ++rank) {
      sources[static_cast<std::size_t>(rank)] =
          rank == team.rank() ? piece.own + window.begin
                              : team.slot(rank, round) + part_offset(piece.part);
    }
    std::byte* const target = piece.data + window.begin;
    lockstep::reduce(piece.reduction, {sources.data(), static_cast<std::size_t>(team.ranks())},
                     {&target, 1}, window.bytes / element_bytes(piece.reduction.element));
  }

  const TransferPlan plan_;
  const std::uint64_t parts_offset_;
  const std::uint64_t part_bytes_;
  std::uint32_t rounds_;
  bool rounds_known_;
  std::uint32_t first_ = 0;
  std::uint32_t posted_ = 0;
  std::uint32_t finished_ = 0;
};

}  // namespace

std::unique_ptr<Operation> make_transfer(TransferPlan plan) {
  return std::make_unique<Transfer>(std::move(plan));
}

}  // namespace lockstep::shm
