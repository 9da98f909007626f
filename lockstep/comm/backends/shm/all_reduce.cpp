#include "lockstep/comm/backends/shm/all_reduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "lockstep/comm/kernels/copy_kernel.h"

namespace lockstep::shm {
namespace {

using Sources = std::array<const std::byte*, kMostRanks>;
using Targets = std::array<std::byte*, kMostRanks>;

struct Arithmetic {
  Reduction reduction;
  Element input_element;
  double* sum_of_squares;
};

Arithmetic arithmetic(const Call& call, const Reduction& reduction, const ReduceBuffers& buffers) {
  return {.reduction = reduction,
          .input_element = call.converts ? call.input_element : reduction.element,
          .sum_of_squares = buffers.sum_of_squares};
}

// The pointers of the ranks that the group has.
template <class Pointers>
auto of_ranks(const Team& team, const Pointers& pointers) {
  return std::span(pointers).first(static_cast<std::size_t>(team.ranks()));
}

void reduce_all(const Arithmetic& arithmetic, std::span<const std::byte* const> sources,
                std::span<std::byte* const> targets, std::uint64_t bytes, Store store) {
  const auto& [reduction, input_element, sum_of_squares] = arithmetic;
  const std::uint64_t elements = bytes / element_bytes(reduction.element);
  if (sum_of_squares == nullptr) {
    reduce_converted(reduction, input_element, sources, targets, elements, store);
  } else {
    *sum_of_squares +=
        reduce_and_sum_squares(reduction, input_element, sources, targets, elements, store);
  }
}

class EagerAllReduce final : public Operation {
 public:
  EagerAllReduce(const Call& call, const Reduction& reduction, const ReduceBuffers& buffers)
      : Operation(call),
        arithmetic_(arithmetic(call, reduction, buffers)),
        buffers_(buffers),
        bytes_(call.elements * element_bytes(call.element)),
        fits_entry_(bytes_ <= kInlineBytes) {}

  Progress post(Team& team) override {
    if (!team.may_post(!fits_entry_)) return Progress::kNone;
    round_ = team.next_round();
    Entry& entry = team.entry_to_post();
    write_call(team);
    std::byte* const target = fits_entry_ ? entry.data : team.slot(team.rank(), round_);
    if (bytes_ != 0) lockstep::copy(target, buffers_.input, bytes_, store(team));
    team.post();
    return Progress::kDone;
  }

  Progress finish(Team& team) override {
    if (!all_called(team, round_)) return Progress::kNone;
    Sources sources;
    for (int rank = 0; rank < team.ranks(); ++rank) {
      sources[static_cast<std::size_t>(rank)] =
          fits_entry_ ? team.entry(rank, round_).data : team.slot(rank, round_);
    }
    // Every rank has all results; the first counts their squares.
    Arithmetic arithmetic = arithmetic_;
    if (team.rank() != 0) arithmetic.sum_of_squares = nullptr;
    reduce_all(arithmetic, of_ranks(team, sources), std::span(&buffers_.output, 1), bytes_,
               Store::kOrdinary);
    team.set_released(round_ + 1);
    return Progress::kDone;
  }

 private:
  Store store(const Team& team) const { return fits_entry_ ? Store::kOrdinary : team.store(); }

  const Arithmetic arithmetic_;
  const ReduceBuffers buffers_;
  const std::uint64_t bytes_;
  const bool fits_entry_;
  std::uint32_t round_ = 0;
};

// Of a tensor that two ranks swap: what a rank copies before its peer can begin to read.
constexpr std::uint64_t kSwappedBytes = 128 * 1024;
static_assert(kSwappedBytes <= kSlotBytes);

// The first round tells where each rank's tensor is; the ways through slots take further rounds.
class LargeAllReduce final : public Operation {
 public:
  LargeAllReduce(const Call& call, const Reduction& reduction, const ReduceBuffers& buffers)
      : Operation(call),
        arithmetic_(arithmetic(call, reduction, buffers)),
        buffers_(buffers),
        bytes_(call.elements * element_bytes(call.element)) {}

  Progress post(Team& team) override {
    if (!called_) return post_call(team);
    if (way_ == Way::kUnknown && buffers_.shared_offset) {
      if (!all_called(team, first_)) return Progress::kNone;
      decide(team);
    }
    if (way_ == Way::kShared) return Progress::kDone;
    // A rank whose own tensor is private need not ask: the way is the chunked one.
    if (!team.may_post(true)) return Progress::kNone;
    post_chunk(team);
    return posted_ == chunks_ ? Progress::kDone : Progress::kSome;
  }

  Progress reduce(Team& team) override {
    if (!called_) return Progress::kNone;
    if (way_ == Way::kUnknown) {
      if (!all_called(team, first_)) return Progress::kNone;
      decide(team);
    }
    if (way_ == Way::kShared) {
      reduce_in_place(team);
      team.set_reduced(first_ + 1);
      return Progress::kDone;
    }
    if (way_ == Way::kSwapped) return Progress::kDone;
    if (reduced_ == posted_ || !team.all_posted(round(reduced_))) return Progress::kNone;
    reduce_chunk(team);
    team.set_reduced(round(reduced_) + 1);
    return ++reduced_ == chunks_ ? Progress::kDone : Progress::kSome;
  }

  Progress finish(Team& team) override {
    if (way_ == Way::kUnknown) return Progress::kNone;
    if (way_ == Way::kShared) {
      if (!team.all_reduced(first_)) return Progress::kNone;
      team.set_released(first_ + 1);
      return Progress::kDone;
    }
    if (way_ == Way::kSwapped) {
      if (finished_ == posted_ || !team.all_posted(round(finished_))) return Progress::kNone;
      reduce_swapped_chunk(team);
      team.set_released(round(finished_) + 1);
      return ++finished_ == chunks_ ? Progress::kDone : Progress::kSome;
    }
    if (finished_ == reduced_ || !team.all_reduced(round(finished_))) return Progress::kNone;
    copy_results(team);
    team.set_released(round(finished_) + 1);
    return ++finished_ == chunks_ ? Progress::kDone : Progress::kSome;
  }

 private:
  enum class Way { kUnknown, kShared, kChunked, kSwapped };

  std::uint32_t round(std::uint32_t chunk) const { return first_ + 1 + chunk; }

  Range chunk(std::uint32_t index) const {
    const std::uint64_t begin = index * chunk_bytes_;
    return {.begin = begin, .bytes = std::min(chunk_bytes_, bytes_ - begin)};
  }

  // Of two ranks each reads as many bytes of the other's where it reduces everything itself as
  // where it reduces one half and copies the other; and waits for the other once a chunk, not
  // twice.
  static bool swaps(const Team& team) { return team.ranks() == 2; }

  Progress post_call(Team& team) {
    if (!team.may_post(false)) return Progress::kNone;
    if (buffers_.input != buffers_.output && buffers_.shared_offset && !converts()) {
      give_peers_their_parts(team);
    }
    if (swaps(team)) chunk_bytes_ = kSwappedBytes;
    chunks_ = static_cast<std::uint32_t>((bytes_ + chunk_bytes_ - 1) / chunk_bytes_);
    first_ = team.next_round();
    Entry& entry = team.entry_to_post();
    write_call(team);
    entry.buffer = buffers_.shared_offset.value_or(0);
    if (converts()) std::memcpy(entry.data, &buffers_.input_offset, sizeof buffers_.input_offset);
    team.post();
    called_ = true;
    return call().in_shared_memory ? Progress::kDone : Progress::kSome;
  }

  bool converts() const { return call().converts; }

  // Where the rank's input lies, in a call that converts.
  std::byte* input_of(Team& team, int rank) {
    std::uint64_t offset = 0;
    std::memcpy(&offset, team.entry(rank, first_).data, sizeof offset);
    return team.heap_at(offset, call().elements * element_bytes(arithmetic_.input_element));
  }

  void give_peers_their_parts(Team& team) {
    const Range own = share(bytes_, team.ranks(), team.rank());
    const std::uint64_t end = own.begin + own.bytes;
    lockstep::copy(buffers_.output, buffers_.input, own.begin, team.store());
    lockstep::copy(buffers_.output + end, buffers_.input + end, bytes_ - end, team.store());
  }

  void decide(Team& team) {
    way_ = Way::kShared;
    for (int rank = 0; rank < team.ranks(); ++rank) {
      if (team.entry(rank, first_).buffer == 0) way_ = swaps(team) ? Way::kSwapped : Way::kChunked;
    }
  }

  void reduce_in_place(Team& team) {
    const Range part = share(bytes_, team.ranks(), team.rank());
    const std::uint64_t input_begin = part.begin / element_bytes(arithmetic_.reduction.element) *
                                      element_bytes(arithmetic_.input_element);
    Sources sources;
    Targets targets;
    for (int rank = 0; rank < team.ranks(); ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      targets[index] = team.heap_at(team.entry(rank, first_).buffer, bytes_) + part.begin;
      if (rank == team.rank()) {
        sources[index] = buffers_.input + input_begin;
      } else {
        sources[index] = converts() ? input_of(team, rank) + input_begin : targets[index];
      }
    }
    // Non-temporal stores to lines that were just read cost twice as much as ordinary ones.
    reduce_all(arithmetic_, of_ranks(team, sources), of_ranks(team, targets), part.bytes,
               converts() ? team.store() : Store::kOrdinary);
  }

  // A slot holds the chunk as it lies in the tensor: all of it where ranks swap; else the parts of
  // peers on the way to them, and in the place of the rank's own part, later, its result.
  void post_chunk(Team& team) {
    const Range whole = chunk(posted_);
    const Range own = swaps(team) ? Range{.begin = whole.bytes, .bytes = 0}
                                  : share(whole.bytes, team.ranks(), team.rank());
    std::byte* const slot = team.slot(team.rank(), team.next_round());
    const std::byte* const input = buffers_.input + whole.begin;
    const std::uint64_t end = own.begin + own.bytes;
    lockstep::copy(slot, input, own.begin, team.store());
    lockstep::copy(slot + end, input + end, whole.bytes - end, team.store());
    team.post();
    ++posted_;
  }

  void reduce_swapped_chunk(Team& team) {
    const Range whole = chunk(finished_);
    const int peer = 1 - team.rank();
    Sources sources;
    sources[static_cast<std::size_t>(team.rank())] = buffers_.input + whole.begin;
    sources[static_cast<std::size_t>(peer)] = team.slot(peer, round(finished_));
    const std::array targets{buffers_.output + whole.begin};
    // Both have all results; the first counts their squares.
    Arithmetic arithmetic = arithmetic_;
    if (team.rank() != 0) arithmetic.sum_of_squares = nullptr;
    reduce_all(arithmetic, of_ranks(team, sources), targets, whole.bytes, Store::kOrdinary);
  }

  void reduce_chunk(Team& team) {
    const Range whole = chunk(reduced_);
    const Range own = share(whole.bytes, team.ranks(), team.rank());
    Sources sources;
    for (int rank = 0; rank < team.ranks(); ++rank) {
      sources[static_cast<std::size_t>(rank)] = rank == team.rank()
                                                    ? buffers_.input + whole.begin + own.begin
                                                    : team.slot(rank, round(reduced_)) + own.begin;
    }
    const std::array targets{buffers_.output + whole.begin + own.begin,
                             team.slot(team.rank(), round(reduced_)) + own.begin};
    reduce_all(arithmetic_, of_ranks(team, sources), targets, own.bytes, team.store());
  }

  void copy_results(Team& team) {
    const Range whole = chunk(finished_);
    for (int rank = 0; rank < team.ranks(); ++rank) {
      if (rank == team.rank()) continue;
      const Range part = share(whole.bytes, team.ranks(), rank);
      lockstep::copy(buffers_.output + whole.begin + part.begin,
                     team.slot(rank, round(finished_)) + part.begin, part.bytes, Store::kOrdinary);
    }
  }

  const Arithmetic arithmetic_;
  const ReduceBuffers buffers_;
  const std::uint64_t bytes_;
  std::uint64_t chunk_bytes_ = kSlotBytes;
  std::uint32_t chunks_ = 0;
  Way way_ = Way::kUnknown;
  bool called_ = false;
  std::uint32_t first_ = 0;
  std::uint32_t posted_ = 0;
  std::uint32_t reduced_ = 0;
  std::uint32_t finished_ = 0;
};

}  // namespace

std::unique_ptr<Operation> make_all_reduce(const Call& call, const Reduction& reduction,
                                           const ReduceBuffers& buffers) {
  const std::uint64_t bytes = call.elements * element_bytes(call.element);
  // What is converted has its place in the entry for where its input lies.
  const bool must_lie_in_place = call.converts && call.in_shared_memory;
  if (bytes <= kEagerBytes && !must_lie_in_place) {
    return std::make_unique<EagerAllReduce>(call, reduction, buffers);
  }
  return std::make_unique<LargeAllReduce>(call, reduction, buffers);
}

}  // namespace lockstep::shm
