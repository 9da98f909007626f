// What the program has changed of parameters and state since the last step.
#include <algorithm>
#include <cstring>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <xxhash.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/native_collectives.h"
#include "lockstep/one_copy/internal/model_copy.h"

namespace lockstep::inline internal {
namespace {

bool overlap(const std::vector<PrivateMapping::Range>& pages, std::uint64_t begin,
             std::uint64_t end) {
  const auto first = std::partition_point(pages.begin(), pages.end(),
                                          [&](const auto& range) { return range.end <= begin; });
  return first != pages.end() && first->begin < end;
}

std::string list_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() > 1 ? "ranks" : "rank";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += concat(i == 0 ? " " : ", ", ranks[i]);
  return text;
}

}  // namespace

std::vector<ModelCopy::Item> ModelCopy::items() const {
  std::vector<Item> items;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    items.push_back({.index = index,
                     .state = {},
                     .offset = layout_.parameter(index),
                     .element_bytes = element_bytes_of(index)});
    for (std::size_t k = 0; k < CopyLayout::kStates; ++k) {
      if (!states_[index][k].defined()) continue;
      items.push_back(
          {.index = index,
           .state = k,
           .offset = layout_.state(index, k),
           .element_bytes = static_cast<std::int64_t>(states_[index][k].element_size())});
    }
  }
  return items;
}

// The program may have given a parameter other memory (set_data).
void ModelCopy::bring_back_parameters() {
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    at::Tensor& parameter = parameters_[index];
    const at::Tensor& view = views_[index];
    if (parameter.const_data_ptr() == view.const_data_ptr()) continue;
    if (parameter.sizes() != view.sizes() || parameter.scalar_type() != view.scalar_type() ||
        parameter.device() != view.device()) {
      throw UsageError(concat("step of ", name_, " on rank ", group_.rank(), ": parameter '",
                              names_[index],
                              "' was changed in shape, dtype or device after the module was "
                              "wrapped; change it first, then wrap the module"));
    }
    view.copy_(parameter.detach());
    parameter.set_data(view);
  }
}

void ModelCopy::publish_changes(const Pages& pages) {
  const std::vector<Item> all = items();
  const std::vector<std::uint64_t> own_digests = digests_of_changes(all, pages);
  const auto count = static_cast<std::int64_t>(all.size());
  const at::Tensor own_words = at::empty({count}, at::kLong);
  std::memcpy(own_words.mutable_data_ptr(), own_digests.data(), own_words.nbytes());
  const at::Tensor digests = at::empty({group_.world_size(), count}, at::kLong);
  all_gather_uncompared(group_, digests, own_words, {.name = "changes of " + name_});
  check_alike(all, digests);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (own_digests[i] == 0) continue;
    const Part own_part = part(all[i].index);
    const auto begin = static_cast<std::uint64_t>(own_part.begin * all[i].element_bytes);
    const auto bytes = static_cast<std::uint64_t>(own_part.size() * all[i].element_bytes);
    std::memcpy(shared(all[i].offset + begin), own(all[i].offset + begin), bytes);
  }
  meet("changes of ");
  for (const PrivateMapping::Range& range : pages) memory_->own().drop(range);
}

// Of each item what it was changed to; 0: it was not.
std::vector<std::uint64_t> ModelCopy::digests_of_changes(const std::vector<Item>& items,
                                                         const Pages& pages) const {
  std::vector<std::uint64_t> digests;
  for (const Item& item : items) {
    const auto bytes = static_cast<std::uint64_t>(views_[item.index].numel() * item.element_bytes);
    const bool is_changed = overlap(pages, item.offset, item.offset + bytes) &&
                            std::memcmp(own(item.offset), shared(item.offset), bytes) != 0;
    digests.push_back(is_changed ? XXH64(own(item.offset), bytes, 0) | 1 : 0);
  }
  return digests;
}

void ModelCopy::check_alike(const std::vector<Item>& items, const at::Tensor& digests) const {
  const auto* const words = digests.const_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < items.size(); ++i) {
    std::vector<int> changed;
    std::vector<int> others;
    for (int rank = 0; rank < group_.world_size(); ++rank) {
      const std::int64_t digest = words[static_cast<std::size_t>(rank) * items.size() + i];
      if (digest != 0) changed.push_back(rank);
      if (digest != words[i]) others.push_back(rank);
    }
    if (others.empty()) continue;
    const std::string what = concat("step of ", name_, ": ", describe(items[i]));
    if (changed.size() < static_cast<std::size_t>(group_.world_size())) {
      throw UsageError(concat(what, " was changed since the last step on ", list_of(changed),
                              " alone; with one_copy_per_machine make the same change on every "
                              "rank, or undo it before step()"));
    }
    throw UsageError(concat(what, " was changed since the last step to other values on ",
                            list_of(others),
                            " than on rank 0; make the same change on every rank"));
  }
}

std::string ModelCopy::describe(const Item& item) const {
  const std::string parameter = concat("parameter '", names_[item.index], "'");
  return item.state ? concat("state ", *item.state, " of ", parameter) : parameter;
}

}  // namespace lockstep::inline internal
