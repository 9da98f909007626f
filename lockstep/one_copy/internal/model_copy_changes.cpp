// What the program has changed of parameters and state since the last step.
#include <algorithm>
#include <cstring>

#include <ATen/ops/empty_like.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/one_copy/internal/hash.h"
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
      const auto& type = memory_->types()[index][k];
      if (!type) continue;
      items.push_back({.index = index,
                       .state = k,
                       .offset = layout_.state(index, k),
                       .element_bytes = static_cast<std::int64_t>(c10::elementSize(*type))});
    }
  }
  return items;
}

bool ModelCopy::lies_in_copy(std::size_t index) const {
  const at::Tensor& parameter = parameters_[index];
  const at::Tensor& view = views_[index];
  return parameter.const_data_ptr() == view.const_data_ptr() && parameter.sizes() == view.sizes() &&
         parameter.strides() == view.strides();
}

// The program may have given a parameter other memory, or other strides (set_data).
void ModelCopy::bring_back_parameters() {
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    at::Tensor& parameter = parameters_[index];
    const at::Tensor& view = views_[index];
    if (lies_in_copy(index)) continue;
    if (parameter.sizes() != view.sizes() || parameter.scalar_type() != view.scalar_type() ||
        parameter.device() != view.device()) {
      throw UsageError(concat("step of ", name_, " on rank ", group_.rank(), ": parameter '",
                              names_[index],
                              "' was changed in shape, dtype or device after the module was "
                              "wrapped; change it first, then wrap the module"));
    }
    // Copied first: it may be other strides over the copy itself.
    view.copy_(parameter.detach().clone());
    parameter.set_data(view);
  }
}

void ModelCopy::find_changes() {
  pages_ = memory_->own().own_pages();
  changes_.clear();
  if (pages_.empty()) return;
  items_ = items();
  for (const Item& item : items_) {
    const auto bytes = static_cast<std::uint64_t>(views_[item.index].numel() * item.element_bytes);
    const bool is_changed = overlap(pages_, item.offset, item.offset + bytes) &&
                            std::memcmp(own(item.offset), shared(item.offset), bytes) != 0;
    changes_.push_back(is_changed ? hash_of(own(item.offset), bytes) | 1 : 0);
  }
}

std::vector<std::uint64_t> ModelCopy::hashes_of_changes() const {
  const Pages pages = memory_->own().own_pages();
  std::vector<std::uint64_t> hashes(parameters_.size());
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    const at::Tensor& parameter = parameters_[index];
    const std::uint64_t begin = layout_.parameter(index);
    const std::uint64_t bytes = views_[index].nbytes();
    if (bytes == 0 || (lies_in_copy(index) && !overlap(pages, begin, begin + bytes))) continue;
    if (!parameter.is_cpu() || parameter.sizes() != views_[index].sizes() ||
        parameter.nbytes() != bytes) {
      hashes[index] = 1;  // The next step refuses it.
      continue;
    }
    const bool is_in_order = parameter.strides() == views_[index].strides();
    const at::Tensor values =
        is_in_order ? parameter.detach() : at::empty_like(views_[index]).copy_(parameter.detach());
    if (std::memcmp(values.const_data_ptr(), shared(begin), bytes) != 0) {
      hashes[index] = hash_of(values.const_data_ptr(), bytes) | 1;
    }
  }
  return hashes;
}

void ModelCopy::check_changes() {
  bool any = false;
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    any = any || words_of(rank)[0] != 0;
  }
  if (!any) return;
  items_ = items();
  const auto changes = is_on_one_machine() ? decltype(changes_of_all())() : changes_of_all();
  const std::size_t first = kHeaderWords + stepping_.size();
  const auto change_of = [&](int rank, std::size_t i) {
    if (!is_on_one_machine()) return changes[static_cast<std::size_t>(rank)][i];
    const auto words = words_of(rank);
    return words[0] == 0 ? 0 : words[first + i];
  };
  for (std::size_t i = 0; i < items_.size(); ++i) {
    std::vector<int> changed;
    std::vector<int> others;
    for (int rank = 0; rank < group_.world_size(); ++rank) {
      if (change_of(rank, i) != 0) changed.push_back(rank);
      if (change_of(rank, i) != change_of(0, i)) others.push_back(rank);
    }
    if (others.empty()) continue;
    const std::string what = concat("step of ", name_, ": ", describe(items_[i]));
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

void ModelCopy::publish_changes(int of_share) const {
  for (std::size_t i = 0; i < changes_.size(); ++i) {
    if (changes_[i] == 0) continue;
    const Item& item = items_[i];
    const Part written = layout_.part(item.index, of_share);
    const std::uint64_t begin =
        item.offset + static_cast<std::uint64_t>(written.begin * item.element_bytes);
    const auto bytes = static_cast<std::uint64_t>(written.size() * item.element_bytes);
    memory_->before_write(begin, bytes);
    std::memcpy(shared(begin), own(begin), bytes);
  }
}

std::string ModelCopy::describe(const Item& item) const {
  const std::string parameter = concat("parameter '", names_[item.index], "'");
  return item.state ? concat("state ", *item.state, " of ", parameter) : parameter;
}

}  // namespace lockstep::inline internal
