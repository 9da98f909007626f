// What copies of several machines do together. All machines average the same gradients, in the same
// parts, so that their copies have the same bits after each step.
#include <algorithm>
#include <array>
#include <cstring>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/native_collectives.h"
#include "lockstep/comm/kernels/reduce_kernel.h"
#include "lockstep/one_copy/internal/model_copy.h"

namespace lockstep::inline internal {
namespace {

// Of what is exchanged at once, while the next is summed on the machine.
constexpr std::int64_t kExchangeBytes = std::int64_t{4} << 20;

// In a word of what ranks compare: which gradients a rank has, and which are averages.
constexpr std::size_t kGradientsPerWord = 32;
constexpr std::int64_t kHas = 1;
constexpr std::int64_t kIsAverage = 2;

}  // namespace

std::vector<std::vector<std::int64_t>> ModelCopy::gather_words(const std::vector<std::int64_t>& own,
                                                               const char* what) const {
  const auto words = static_cast<std::int64_t>(own.size());
  const at::Tensor input = at::empty({words}, at::kLong);
  std::ranges::copy(own, input.mutable_data_ptr<std::int64_t>());
  const at::Tensor output = at::empty({group_.world_size() * words}, at::kLong);
  all_gather_uncompared(group_, output, input, {.name = what + name_});
  std::vector<std::vector<std::int64_t>> rows;
  const auto* word = output.const_data_ptr<std::int64_t>();
  for (int rank = 0; rank < group_.world_size(); ++rank, word += words) {
    rows.emplace_back(word, word + words);
  }
  return rows;
}

// Afterwards all gradients of these parameters that any rank has are averages.
void ModelCopy::average_over_machines(const std::vector<std::size_t>& indices,
                                      std::uint64_t digest) {
  if (is_on_one_machine()) return;
  if (is_broken_) throw_broken();
  const std::vector<std::size_t> summed = compare_machines(indices, digest);
  if (summed.empty()) return;
  try {
    hand_over(summed, 0);
    meet("sum of ");
    find_sources(summed);
    exchange_sums(summed);
    forget_sources();
  } catch (const std::exception& error) {
    // Peers have begun as well. None has handed over what it would update.
    if (const auto* const known = dynamic_cast<const Error*>(&error)) note_loss(*known);
    leave();
    group_.c10d_backend()->abort();
    throw;
  }
}

// Throws on all ranks, or on none; returns what is to be averaged.
std::vector<std::size_t> ModelCopy::compare_machines(const std::vector<std::size_t>& indices,
                                                     std::uint64_t digest) {
  std::vector<std::int64_t> gradients(parameters_.size() / kGradientsPerWord + 1);
  for (const std::size_t index : indices) {
    const std::int64_t place = place_of_gradient(index);
    const std::int64_t flags = (place != 0 ? kHas : 0) | (place < 0 ? kIsAverage : 0);
    gradients[index / kGradientsPerWord] |= flags << 2 * (index % kGradientsPerWord);
  }
  const auto gather = [this](const std::vector<std::int64_t>& own) {
    try {
      return gather_words(own, "step of ");
    } catch (const Error& error) {
      note_loss(error);
      throw;
    }
  };
  // Those of another model may be of another length.
  words_ = gather(header_words(indices, digest));
  check_same_call();
  const auto gradients_of_all = gather(gradients);
  check_changes();
  std::vector<std::size_t> summed;
  for (const std::size_t index : indices) {
    int held = 0;
    int averaged = 0;
    for (const auto& words : gradients_of_all) {
      const std::int64_t flags =
          words[index / kGradientsPerWord] >> 2 * (index % kGradientsPerWord);
      if ((flags & kHas) != 0) ++held;
      if ((flags & kIsAverage) != 0) ++averaged;
    }
    check_averaged_everywhere(index, averaged, group_.world_size());
    if (held > 0 && averaged == 0) summed.push_back(index);
  }
  check_same_changes_of_averages();
  return summed;
}

// Equal on all machines.
std::vector<std::vector<ModelCopy::Summed>> ModelCopy::plan_exchanges(
    const std::vector<std::size_t>& indices) const {
  std::vector<std::vector<Summed>> exchanges;
  std::int64_t room = 0;
  std::optional<Element> element;
  for (const std::size_t index : indices) {
    if (element != elements_[index]) room = 0;
    element = elements_[index];
    const std::int64_t bytes = element_bytes_of(index);
    const Part part = averaged_by(index, local_.rank());
    for (std::int64_t begin = part.begin; begin < part.end;) {
      if (room < bytes) {
        exchanges.emplace_back();
        room = kExchangeBytes;
      }
      const std::int64_t elements = std::min({room / bytes, kChunkBytes / bytes, part.end - begin});
      exchanges.back().push_back({.index = index, .begin = begin, .elements = elements});
      room -= elements * bytes;
      begin += elements;
    }
  }
  return exchanges;
}

void ModelCopy::exchange_sums(const std::vector<std::size_t>& indices) {
  for (const std::size_t index : indices) own_gradient(index);
  std::array<Exchange, 2> running;
  std::size_t number = 0;
  for (const std::vector<Summed>& parts : plan_exchanges(indices)) {
    Exchange& next = running[number++ % 2];
    finish_exchange(next);
    next.parts = parts;
    start_exchange(next);
  }
  finish_exchange(running[number % 2]);
  finish_exchange(running[(number + 1) % 2]);
  for (const std::size_t index : indices) held_[index].is_averaged = true;
}

// Sums the machine's gradients, in the order of an all-reduce.
void ModelCopy::start_exchange(Exchange& exchange) {
  const Element element = elements_[exchange.parts.front().index];
  const std::int64_t bytes = element_bytes_of(exchange.parts.front().index);
  if (!exchange.sums.defined()) exchange.sums = at::empty({kExchangeBytes}, at::kByte);
  auto* target = static_cast<std::byte*>(exchange.sums.mutable_data_ptr());
  std::int64_t elements = 0;
  for (const Summed& part : exchange.parts) {
    std::vector<const std::byte*> sources;
    for (const std::byte* const source : sources_[part.index]) {
      sources.push_back(source == nullptr ? zeros_.get() : source + part.begin * bytes);
    }
    // No rank of this machine has it.
    if (sources.empty()) sources.push_back(zeros_.get());
    reduce({.element = element, .op = ReduceOp::kSum}, sources, std::span(&target, 1),
           static_cast<std::size_t>(part.elements));
    target += part.elements * bytes;
    elements += part.elements;
  }
  const at::ScalarType dtype = views_[exchange.parts.front().index].scalar_type();
  exchange.work =
      sum_over_machines(group_, exchange.sums.narrow(0, 0, elements * bytes).view(dtype),
                        {.async_op = true, .name = "sum of " + name_});
}

// Each rank keeps its part of the averages where its own gradient lies.
void ModelCopy::finish_exchange(Exchange& exchange) {
  exchange.work.wait();
  const auto* source = static_cast<const std::byte*>(
      exchange.parts.empty() ? nullptr : exchange.sums.const_data_ptr());
  for (const Summed& part : exchange.parts) {
    const std::int64_t bytes = element_bytes_of(part.index);
    std::memcpy(own_gradient(part.index) + part.begin * bytes, source,
                static_cast<std::size_t>(part.elements * bytes));
    source += part.elements * bytes;
  }
  exchange.parts.clear();
}

// By item.
std::vector<std::vector<std::int64_t>> ModelCopy::changes_of_all() const {
  std::vector<std::int64_t> own(changes_.begin(), changes_.end());
  own.resize(parameters_.size() * (1 + CopyLayout::kStates));
  return gather_words(own, "changes of ");
}

// When every rank of this machine has handed over what its peers need. If the machines cannot hear
// each other any more, each decides by itself: ranks that go on from different steps have no group.
void ModelCopy::tell_machines(bool refuses) {
  if (is_on_one_machine()) return;
  std::int64_t refusing = refuses ? 1 + rank_of(log_->decider()) : 0;
  try {
    for (const auto& words : gather_words({refusing}, "vote of ")) {
      if (refusing == 0) refusing = words[0];
    }
  } catch (const std::exception& error) {
    if (const auto* const known = dynamic_cast<const Error*>(&error)) note_loss(*known);
    return;
  }
  if (refuses || refusing == 0) return;
  // A rank of this machine may have heard of a loss instead, and decided.
  if (decide_step(Decision::kVoid) == Decision::kUpdate) return;
  throw_void_step(static_cast<int>(refusing - 1));
}

}  // namespace lockstep::inline internal
