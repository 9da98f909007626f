#include "lockstep/ddp/exchange/shard_sum.h"

#include <algorithm>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/internal/check.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/comm/internal/native_collectives.h"

namespace lockstep::inline internal {
namespace {

// A cache line of the smallest dtype with 4 bytes: no two ranks write to the same one.
constexpr std::int64_t kPartIsMultipleOf = 16;
// Elements that are sent at once, so that the messages' memory stays small beside the values.
constexpr std::int64_t kChunk = std::int64_t{1} << 20U;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

ShardSum::ShardSum(ProcessGroup group, int shards, const Layout& layout)
    : group_(std::move(group)),
      shards_(shards),
      own_(shards_of_rank(shards, group_.world_size(), group_.rank())),
      most_sums_(most_partial_sums(shards, group_.world_size())),
      layout_(layout),
      tree_(shards),
      spare_(layout.size()) {
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    const auto nodes = partial_sums(shards, shards_of_rank(shards, group_.world_size(), rank));
    of_ranks_.insert(of_ranks_.end(), nodes.begin(), nodes.end());
  }
  for (const auto& [dtype, numel] : layout_) {
    padded_.push_back(round_up(numel, group_.world_size() * kPartIsMultipleOf));
  }
}

ShardSum::Value ShardSum::empty_value() const {
  return {.tensors = std::vector<at::Tensor>(layout_.size()),
          .is_adopted = std::vector<bool>(layout_.size())};
}

at::Tensor ShardSum::allocate(std::size_t index) {
  if (!spare_[index].empty()) {
    const at::Tensor tensor = spare_[index].back();
    spare_[index].pop_back();
    return tensor;
  }
  const at::Tensor tensor = group_.allocate_tensor(padded_[index], layout_[index].first);
  const std::int64_t numel = layout_[index].second;
  tensor.narrow(0, numel, padded_[index] - numel).zero_();
  return tensor;
}

void ShardSum::recycle(const Value& value) {
  for (std::size_t i = 0; i < value.tensors.size(); ++i) {
    if (value.tensors[i].defined() && !value.is_adopted[i]) spare_[i].push_back(value.tensors[i]);
  }
}

at::Tensor ShardSum::without_padding(const Value& value, std::size_t index) const {
  return value.tensors[index].narrow(0, 0, layout_[index].second);
}

bool ShardSum::may_adopt(const at::Tensor& tensor) const {
  return group_.world_size() == 1 || is_shared(group_, tensor);
}

void ShardSum::adopt(std::size_t index, at::Tensor flat) {
  LOCKSTEP_ASSERT(flat.dim() == 1 && flat.numel() == layout_[index].second);
  if (!next_) next_ = empty_value();
  next_->tensors[index] = std::move(flat);
  next_->is_adopted[index] = true;
}

const std::vector<at::Tensor>& ShardSum::next_value() {
  if (!next_) next_ = empty_value();
  for (std::size_t i = 0; i < layout_.size(); ++i) {
    if (!next_->tensors[i].defined()) next_->tensors[i] = allocate(i);
  }
  return next_->tensors;
}

void ShardSum::push(int shard) {
  LOCKSTEP_ASSERT(next_ && own_.begin <= shard && shard < own_.end);
  const at::NoGradGuard no_grad;
  sums_.push_back(*std::exchange(next_, std::nullopt));
  for (int sums = tree_.push({.first = shard}); sums > 0; --sums) {
    const Value right = std::move(sums_.back());
    sums_.pop_back();
    for (std::size_t i = 0; i < layout_.size(); ++i) {
      without_padding(sums_.back(), i).add_(without_padding(right, i));
    }
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

// Of two numbers no order counts. Other backends may round sums of halves in their own way.
bool ShardSum::is_all_reduce() const {
  const auto is_added_alike = [&](const auto& entry) {
    return group_.shares_memory() || entry.first == at::kFloat || entry.first == at::kDouble;
  };
  return group_.world_size() == 2 && of_ranks_.size() == 2 && sums_.size() == 1 &&
         std::ranges::all_of(layout_, is_added_alike);
}

void ShardSum::all_reduce() {
  std::vector<Work> works;
  for (std::size_t i = 0; i < layout_.size(); ++i) {
    const at::Tensor sum = without_padding(sums_.front(), i);
    works.push_back(
        all_reduce_into(group_, sum, sum, {}, {.async_op = true, .name = "sum over shards"}));
  }
  for (const Work& work : works) work.wait();
}

const std::vector<at::Tensor>& ShardSum::finish() {
  const at::NoGradGuard no_grad;
  LOCKSTEP_ASSERT(tree_.nodes() == partial_sums(shards_, own_));
  results_.clear();
  if (group_.world_size() == 1 || is_all_reduce()) {
    if (group_.world_size() > 1) all_reduce();
    recycle(padded_results_);
    padded_results_ = std::move(sums_.front());
    sums_.clear();
  } else {
    if (padded_results_.tensors.empty()) padded_results_ = empty_value();
    for (std::size_t i = 0; i < layout_.size(); ++i) {
      at::Tensor& result = padded_results_.tensors[i];
      if (!result.defined()) result = allocate(i);
      if (!exchange_in_place(i)) exchange(i);
    }
  }
  clear();
  for (std::size_t i = 0; i < layout_.size(); ++i) {
    results_.push_back(without_padding(padded_results_, i));
  }
  return results_;
}

// Of all ranks' partial sums.
at::Tensor ShardSum::sum_of(const std::vector<at::Tensor>& rows) const {
  ShardTree tree(shards_);
  std::vector<at::Tensor> sums;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    sums.push_back(rows[i]);
    for (int count = tree.push(of_ranks_[i]); count > 0; --count) {
      const at::Tensor right = sums.back();
      sums.pop_back();
      sums.back() = at::add(sums.back(), right);
    }
  }
  LOCKSTEP_ASSERT(tree.is_complete());
  return sums.front();
}

void ShardSum::exchange(std::size_t index) {
  for (Value& sum : sums_) {
    if (!sum.is_adopted[index]) continue;
    const at::Tensor padded = allocate(index);
    padded.narrow(0, 0, layout_[index].second).copy_(sum.tensors[index]);
    sum.tensors[index] = padded;
    sum.is_adopted[index] = false;
  }
  const std::int64_t ranks = group_.world_size();
  const std::int64_t all = padded_[index];
  const std::int64_t most = std::min(all, round_up(kChunk, ranks * kPartIsMultipleOf));
  const at::Tensor& result = padded_results_.tensors[index];
  const auto options = result.options();
  const at::Tensor out = at::empty({most_sums_ * most}, options);
  const at::Tensor in = at::empty({most_sums_ * most}, options);
  for (std::int64_t from = 0; from < all; from += most) {
    const std::int64_t chunk = std::min(most, all - from);
    const std::int64_t part = chunk / ranks;
    const std::vector<std::int64_t> shape{ranks, most_sums_, part};
    const at::Tensor sent = out.narrow(0, 0, most_sums_ * chunk).view(shape);
    const at::Tensor received = in.narrow(0, 0, most_sums_ * chunk).view(shape);
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      sent.select(1, static_cast<std::int64_t>(i))
          .copy_(sums_[i].tensors[index].narrow(0, from, chunk).view({ranks, part}));
    }
    group_.all_to_all_single(received, sent, {}, {}, {.name = "sums of shards"});
    std::vector<at::Tensor> rows;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto block = shards_of_rank(shards_, static_cast<int>(ranks), rank);
      const auto count = static_cast<std::int64_t>(partial_sums(shards_, block).size());
      for (std::int64_t i = 0; i < count; ++i)
        rows.push_back(received.select(0, rank).select(0, i));
    }
    group_.all_gather_into_tensor(result.narrow(0, from, chunk), sum_of(rows),
                                  {.name = "sum over shards"});
  }
}

// By rank: where its partial sums lie in memory that all ranks know.
std::vector<std::vector<std::uint64_t>> ShardSum::gather_places(std::size_t index) const {
  constexpr std::int64_t kNowhere = -1;
  std::vector<std::int64_t> own(static_cast<std::size_t>(most_sums_), kNowhere);
  bool is_shared_here = true;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const auto place = shared_offset(group_, sums_[i].tensors[index]);
    is_shared_here = is_shared_here && place;
    if (place) own[i] = static_cast<std::int64_t>(*place);
  }
  own.push_back(is_shared_here ? 1 : 0);
  std::vector<std::vector<std::uint64_t>> places;
  for (const auto& row : gather_rows(group_, own)) {
    if (row.back() == 0) return {};
    auto& of_rank = places.emplace_back();
    for (std::size_t i = 0; i + 1 < row.size() && row[i] != kNowhere; ++i) {
      of_rank.push_back(static_cast<std::uint64_t>(row[i]));
    }
  }
  return places;
}

// The exchange of places shows that all ranks have written their partial sums; the gathering that
// all have read them.
bool ShardSum::exchange_in_place(std::size_t index) {
  if (!group_.shares_memory()) return false;
  const auto places = gather_places(index);
  if (places.empty()) return false;
  const at::Tensor& result = padded_results_.tensors[index];
  const auto element = static_cast<std::uint64_t>(result.element_size());
  const std::int64_t part = padded_[index] / group_.world_size();
  const std::int64_t from = part * group_.rank();
  // What is adopted has no padding.
  const std::int64_t valid = std::clamp<std::int64_t>(layout_[index].second - from, 0, part);
  // A block that is read from memory once, and whose sums stay in the cache.
  constexpr std::int64_t kBlock = 4096;
  const at::Tensor own = at::empty({part}, result.options());
  own.narrow(0, valid, part - valid).zero_();
  std::vector<at::Tensor> sums;
  for (const auto& of_rank : places) {
    for (const std::uint64_t place : of_rank) {
      if (valid == 0) continue;
      const std::byte* const address =
          shared_address(group_, place + static_cast<std::uint64_t>(from) * element,
                         static_cast<std::uint64_t>(valid) * element);
      // Only read.
      sums.push_back(at::from_blob(const_cast<std::byte*>(address), {valid}, result.options()));
    }
  }
  for (std::int64_t begin = 0; begin < valid; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, valid - begin);
    std::vector<at::Tensor> rows;
    for (const at::Tensor& sum : sums) rows.push_back(sum.narrow(0, begin, count));
    own.narrow(0, begin, count).copy_(sum_of(rows));
  }
  group_.all_gather_into_tensor(result, own, {.name = "sum over shards"});
  return true;
}

}  // namespace lockstep::inline internal
