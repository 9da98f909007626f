#include <algorithm>
#include <utility>

#include "lockstep/base/internal/concat.h"
#include "lockstep/ddp/internal/gradient_reducer.h"

namespace lockstep::inline internal {

void GradientReducer::plan_by_first_pass() {
  ObservedGraph graph = agree_on_graph(group_, observe());
  for (std::size_t index = 0; index < graph.layouts.size(); ++index) {
    if (graph.layouts[index] == GradientLayout::kBoth) refuse_both_layouts(index);
  }
  planned_ = plan_exchanges(parameters_, group_, exchange_, graph,
                            {.caps = plan_.caps,
                             .leave_out_unused = options_.static_graph,
                             .delayed = plan_.delayed,
                             .delay_until = plan_.delay_until});
  layouts_ = std::move(graph.layouts);
  for (std::size_t index = 0; index < layouts_.size(); ++index) {
    const bool is_exchanged = planned_.places[index].exchange != ExchangeSchedule::kNoBucket;
    if (is_exchanged && layouts_[index] == GradientLayout::kUnknown) unreached_.push_back(index);
  }
  adopt_plan();
  is_planned_ = true;
  last_additions_ = {};
}

void GradientReducer::adopt_plan() {
  recorder_.plan(layout_of(planned_, parameters_, names_, exchange_));
  abouts_.clear();
  std::vector<std::size_t> bucket_of;
  for (std::size_t number = 0; number < planned_.exchanges.size(); ++number) {
    abouts_.push_back(about(number));
  }
  for (const ExchangePlace& place : planned_.places) bucket_of.push_back(place.exchange);
  schedule_ = ExchangeSchedule(std::move(bucket_of), planned_.exchanges.size());
}

ObservedGraph GradientReducer::observe() const {
  ObservedGraph graph;
  std::vector<bool> seen(parameters_.size());
  // A gradient is complete with its last addition. Parameters without one come last.
  for (auto index = last_additions_.rbegin(); index != last_additions_.rend(); ++index) {
    if (!seen[*index]) graph.order.push_back(*index);
    seen[*index] = true;
  }
  std::reverse(graph.order.begin(), graph.order.end());
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    if (!seen[index]) graph.order.push_back(index);
    graph.layouts.push_back(own_layout(index));
  }
  return graph;
}

GradientLayout GradientReducer::own_layout(std::size_t index) const {
  const at::Tensor& gradient = parameters_[index].grad();
  if (!gradient.defined()) return GradientLayout::kUnknown;
  return gradient.is_sparse() ? GradientLayout::kSparse : GradientLayout::kStrided;
}

void GradientReducer::check_layout(std::size_t index) const {
  const at::Tensor& gradient = parameters_[index].grad();
  const GradientLayout known = layouts_[index];
  if (!gradient.defined() || known == GradientLayout::kUnknown) return;
  const bool sparse = known == GradientLayout::kSparse;
  if (gradient.layout() == (sparse ? at::kSparse : at::kStrided)) return;
  throw usage_error(index, concat("has a ", sparse ? "strided" : "sparse",
                                  " gradient where some rank had a ", sparse ? "sparse" : "strided",
                                  " one in the first backward pass that reached it; use it in one "
                                  "way only"));
}

void GradientReducer::refuse_both_layouts(std::size_t index) const {
  throw usage_error(index,
                    "has a sparse gradient on some rank and a strided one on another; use it in "
                    "one way only");
}

void GradientReducer::note_unreached() {
  own_layouts_.clear();
  for (const std::size_t index : unreached_) own_layouts_.push_back(own_layout(index));
}

// Where a rank has reached one of them, for the first time, all ranks know by what travels beside
// the gradients: now .grad is defined on all of them.
void GradientReducer::settle_unreached() {
  std::vector<std::size_t> reached_now;
  std::vector<GradientLayout> own;
  for (std::size_t i = 0; i < unreached_.size(); ++i) {
    if (!parameters_[unreached_[i]].grad().defined()) continue;
    reached_now.push_back(unreached_[i]);
    own.push_back(own_layouts_[i]);
  }
  if (reached_now.empty()) return;
  const std::vector<GradientLayout> agreed = agree_on_layouts(group_, own);
  std::vector<std::size_t> sparse;
  for (std::size_t i = 0; i < reached_now.size(); ++i) {
    const std::size_t index = reached_now[i];
    if (agreed[i] == GradientLayout::kBoth) refuse_both_layouts(index);
    layouts_[index] = agreed[i];
    if (agreed[i] != GradientLayout::kSparse) continue;
    // The zeros that were exchanged in its place.
    if (own[i] == GradientLayout::kUnknown) parameters_[index].mutable_grad() = at::Tensor();
    sparse.push_back(index);
  }
  std::erase_if(unreached_, [&](std::size_t index) LOCKSTEP_REQUIRES(mutex_) {
    return layouts_[index] != GradientLayout::kUnknown;
  });
  if (!sparse.empty()) exchange_as_sparse(sparse);
}

void GradientReducer::exchange_as_sparse(const std::vector<std::size_t>& indices) {
  std::vector<std::size_t> numbers;
  for (const std::size_t index : indices) {
    // In a group of one rank gradients of any layout stay where they are.
    if (planned_.kinds[planned_.places[index].exchange] == BucketKind::kNotExchanged) continue;
    lockstep::exchange_as_sparse(planned_, index, parameters_[index], group_, exchange_);
    numbers.push_back(planned_.places[index].exchange);
  }
  if (numbers.empty()) return;
  adopt_plan();
  for (const std::size_t number : numbers) fill(planned_.exchanges[number]->indices()[0]);
  for (const std::size_t number : numbers) start(number);
  for (const std::size_t number : numbers) finish(number);
}

}  // namespace lockstep::inline internal
