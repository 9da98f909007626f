#include "lockstep/ddp/exchange/shard_sum.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/internal/check.h"
#include "lockstep/comm/internal/element_of.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/comm/internal/native_collectives.h"
#include "lockstep/ddp/exchange/machine_failure.h"

namespace lockstep::inline internal {
namespace {

// A cache line of the smallest dtype with 4 bytes: no two ranks write to the same one.
constexpr std::int64_t kShareIsMultipleOf = 16;
// Elements that are sent at once, so that the messages' memory stays small beside the values.
constexpr std::int64_t kChunk = std::int64_t{1} << 20U;
// Between machines a rank waits at a barrier for two messages of another one, and for what that one
// finds out when they are late: the launcher's report, or that there is none.
constexpr int kTimeoutsOfBarrier = 3;
constexpr std::chrono::seconds kForReports{5};

std::int64_t divide_up(std::int64_t value, std::int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

std::byte* data_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

}  // namespace

ShardSum::ShardSum(ProcessGroup group, int shards, const Layout& layout)
    : group_(std::move(group)),
      machines_(machine_groups(group_)),
      shards_(shards),
      own_(shards_of_rank(shards, group_.world_size(), group_.rank())),
      plan_(plan_shard_exchange(shards, machines_.ranks, machines_.machine)),
      within_(plan_.within),
      between_(plan_.between),
      layout_(layout),
      tree_(shards),
      spare_(layout.size()),
      results_(empty_value()) {}

ShardSum::Value ShardSum::empty_value() const {
  return {.tensors = std::vector<at::Tensor>(layout_.size()),
          .is_adopted = std::vector<bool>(layout_.size())};
}

void ShardSum::fill(Value& value) {
  const ProcessGroup& memory = machines_.local ? machines_.local : group_;
  for (std::size_t i = 0; i < layout_.size(); ++i) {
    if (value.tensors[i].defined()) continue;
    if (spare_[i].empty()) {
      value.tensors[i] = memory.allocate_tensor(layout_[i].second, layout_[i].first);
    } else {
      value.tensors[i] = std::move(spare_[i].back());
      spare_[i].pop_back();
    }
  }
}

void ShardSum::recycle(const Value& value) {
  for (std::size_t i = 0; i < value.tensors.size(); ++i) {
    if (value.tensors[i].defined() && !value.is_adopted[i]) spare_[i].push_back(value.tensors[i]);
  }
}

bool ShardSum::may_adopt(const at::Tensor& tensor) const {
  return !machines_.local || is_shared(machines_.local, tensor);
}

void ShardSum::adopt(std::size_t index, at::Tensor flat) {
  LOCKSTEP_ASSERT(flat.dim() == 1 && flat.numel() == layout_[index].second);
  if (!next_) next_ = empty_value();
  next_->tensors[index] = std::move(flat);
  next_->is_adopted[index] = true;
}

const std::vector<at::Tensor>& ShardSum::next_value() {
  if (!next_) next_ = empty_value();
  fill(*next_);
  return next_->tensors;
}

const std::vector<at::Tensor>* ShardSum::left_sibling(int shard) const {
  return ShardTree(tree_).push({.first = shard}) > 0 ? &sums_.back().tensors : nullptr;
}

void ShardSum::push(int shard) {
  LOCKSTEP_ASSERT(own_.begin <= shard && shard < own_.end);
  const at::NoGradGuard no_grad;
  int sums = tree_.push({.first = shard});
  LOCKSTEP_ASSERT(next_ || sums > 0);
  if (next_) {
    sums_.push_back(*std::exchange(next_, std::nullopt));
  } else {
    --sums;
  }
  for (; sums > 0; --sums) {
    const Value right = std::move(sums_.back());
    sums_.pop_back();
    for (std::size_t i = 0; i < layout_.size(); ++i) sums_.back().tensors[i].add_(right.tensors[i]);
    recycle(right);
  }
}

void ShardSum::clear() {
  tree_.clear();
  if (next_) recycle(*next_);
  next_.reset();
  for (const Value& sum : sums_) recycle(sum);
  sums_.clear();
}

// The exchange of places shows that the ranks of this machine have written their partial sums; the
// barrier that they have written all results.
const std::vector<at::Tensor>& ShardSum::finish() {
  const at::NoGradGuard no_grad;
  LOCKSTEP_ASSERT(tree_.nodes() == partial_sums(shards_, own_));
  recycle(results_);
  // The result takes the place of the first partial sum.
  results_ = sums_.empty() ? empty_value() : sums_.front();
  try {
    fill(results_);
    if (group_.world_size() > 1) exchange_all();
  } catch (...) {
    // It is the first partial sum as well, which clear() takes back.
    if (!sums_.empty()) results_ = empty_value();
    rethrow_as_failure_of(group_, machines_);
  }
  if (!sums_.empty()) sums_.erase(sums_.begin());
  clear();
  return results_.tensors;
}

void ShardSum::exchange_all() {
  const auto of_ranks = places_of_ranks();
  for (std::size_t i = 0; i < layout_.size(); ++i) {
    if (layout_[i].second > 0) exchange(i, of_ranks);
  }
  meet_machine();
}

void ShardSum::meet_machine() {
  if (!machines_.local) return;
  std::chrono::milliseconds timeout = machines_.local.timeout();
  if (machines_.ranks.size() > 1) timeout = kTimeoutsOfBarrier * timeout + kForReports;
  machines_.local.barrier({.timeout = timeout, .name = "sum over shards"});
}

// By tensor.
std::vector<ShardSum::Places> ShardSum::own_places() const {
  std::vector<Places> places;
  for (std::size_t i = 0; i < layout_.size(); ++i) {
    Places& one = places.emplace_back();
    for (const Value& sum : sums_) one.sums.push_back(data_of(sum.tensors[i]));
    one.target = data_of(results_.tensors[i]);
  }
  return places;
}

// By rank of this machine, by tensor.
std::vector<std::vector<ShardSum::Places>> ShardSum::places_of_ranks() const {
  if (!machines_.local) return {own_places()};
  const auto& ranks = machines_.ranks[machines_.machine];
  const auto count_of = [&](int rank) {
    return partial_sums(shards_, shards_of_rank(shards_, group_.world_size(), rank)).size();
  };
  std::size_t most = 0;
  for (const int rank : ranks) most = std::max(most, count_of(rank));
  std::vector<std::int64_t> own;
  const auto add = [&](const at::Tensor& tensor) {
    const auto offset = tensor.numel() > 0 ? shared_offset(machines_.local, tensor)
                                           : std::optional(std::uint64_t{0});
    LOCKSTEP_ASSERT(offset);
    own.push_back(static_cast<std::int64_t>(*offset));
  };
  for (std::size_t i = 0; i < layout_.size(); ++i) {
    for (const Value& sum : sums_) add(sum.tensors[i]);
    own.resize(own.size() + most - sums_.size());
    add(results_.tensors[i]);
  }
  const auto rows = gather_rows(machines_.local, own);
  std::vector<std::vector<Places>> of_ranks;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    const std::size_t count = count_of(ranks[rank]);
    auto& places = of_ranks.emplace_back();
    for (std::size_t i = 0; i < layout_.size(); ++i) {
      const auto& [dtype, numel] = layout_[i];
      Places& one = places.emplace_back();
      if (numel == 0) continue;
      const auto address = [&, bytes = static_cast<std::uint64_t>(numel) *
                                       c10::elementSize(dtype)](std::size_t at) {
        return shared_address(machines_.local,
                              static_cast<std::uint64_t>(rows[rank][i * (most + 1) + at]), bytes);
      };
      for (std::size_t sum = 0; sum < count; ++sum) one.sums.push_back(address(sum));
      one.target = address(most);
    }
  }
  return of_ranks;
}

void ShardSum::exchange(std::size_t index, const std::vector<std::vector<Places>>& of_ranks) {
  const auto& [dtype, numel] = layout_[index];
  const std::int64_t share =
      divide_up(divide_up(numel, static_cast<std::int64_t>(machines_.shares)), kShareIsMultipleOf) *
      kShareIsMultipleOf;
  const std::int64_t begin =
      std::min(numel, share * static_cast<std::int64_t>(machines_.local_index));
  const std::int64_t end = std::min(numel, begin + share);
  const std::size_t offset = static_cast<std::size_t>(begin) * c10::elementSize(dtype);
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> targets;
  for (const auto& of_rank : of_ranks) {
    for (std::byte* const sum : of_rank[index].sums) inputs.push_back(sum + offset);
    targets.push_back(of_rank[index].target + offset);
  }
  if (machines_.ranks.size() > 1) {
    return exchange_between(dtype, {.begin = begin, .end = end, .largest = share}, inputs, targets);
  }
  within_.run(element_of(dtype).value(), inputs, {targets}, static_cast<std::size_t>(end - begin));
}

// Chunk by chunk, of which each machine sums a part. The ranks of a machine keep in step, as some
// have no share or a shorter one: so nobody waits for more than a chunk at once.
void ShardSum::exchange_between(at::ScalarType dtype, const Share& share,
                                const std::vector<const std::byte*>& inputs,
                                const std::vector<std::byte*>& targets) {
  const auto machines = static_cast<std::int64_t>(machines_.ranks.size());
  const std::int64_t part = divide_up(std::min(share.largest, kChunk), machines);
  std::optional<Messages> messages;
  if (share.size() > 0) messages.emplace(plan_, machines, part, dtype);
  for (std::int64_t from = 0; from < share.largest; from += machines * part) {
    if (from < share.size()) exchange_chunk(*messages, from, share.size() - from, inputs, targets);
    meet_machine();
  }
}

ShardSum::Messages::Messages(const ShardExchangePlan& plan, std::int64_t machines,
                             std::int64_t part_size, at::ScalarType dtype)
    : part(part_size),
      size(part_size * plan.most_results),
      sent(at::zeros({machines * size}, dtype)),
      received(at::empty({machines * size}, dtype)),
      sum(at::zeros({part}, dtype)),
      all(at::empty({machines * part}, dtype)) {
  for (const auto& [machine, number] : plan.order) {
    results.push_back(data_of(received) + bytes_of(machine * size + number * part));
  }
}

std::size_t ShardSum::Messages::bytes_of(std::int64_t elements) const {
  return static_cast<std::size_t>(elements) * all.element_size();
}

// `from`: in the share; `left`: elements from there to its end.
void ShardSum::exchange_chunk(const Messages& messages, std::int64_t from, std::int64_t left,
                              const std::vector<const std::byte*>& inputs,
                              const std::vector<std::byte*>& targets) {
  const std::int64_t machines = machines_.partners.world_size();
  const std::int64_t part = messages.part;
  const Element element = element_of(messages.all.scalar_type()).value();
  for (std::int64_t machine = 0; machine < machines; ++machine) {
    std::vector<const std::byte*> here;
    for (const std::byte* const input : inputs) {
      here.push_back(input + messages.bytes_of(from + machine * part));
    }
    std::vector<std::vector<std::byte*>> sums;
    for (std::size_t i = 0; i < within_.plan().results.size(); ++i) {
      const std::int64_t at = machine * messages.size + static_cast<std::int64_t>(i) * part;
      sums.push_back({data_of(messages.sent) + messages.bytes_of(at)});
    }
    const std::int64_t size = std::clamp<std::int64_t>(left - machine * part, 0, part);
    within_.run(element, here, sums, static_cast<std::size_t>(size));
  }
  all_to_all_uncompared(machines_.partners, messages.received, messages.sent,
                        {.name = "sums of shards"})
      .wait();
  between_.run(element, messages.results, {{data_of(messages.sum)}},
               static_cast<std::size_t>(part));
  all_gather_uncompared(machines_.partners, messages.all, messages.sum, {.name = "sum over shards"})
      .wait();
  for (std::byte* const target : targets) {
    std::memcpy(target + messages.bytes_of(from), data_of(messages.all),
                messages.bytes_of(std::min(machines * part, left)));
  }
}

}  // namespace lockstep::inline internal
