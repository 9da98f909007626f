#include <algorithm>
#include <utility>

#include "lockstep/ddp/internal/gradient_reducer_impl.h"

namespace lockstep::inline internal {

void GradientReducer::Impl::plan_by_first_pass() {
  ObservedGraph graph = agree_on_graph(group, observe());
  for (std::size_t index = 0; index < graph.layouts.size(); ++index) {
    if (graph.layouts[index] == GradientLayout::kBoth) refuse_both_layouts(index);
  }
  planned = plan_exchanges(parameters, group, exchange, graph,
                           {.caps = plan.caps,
                            .leave_out_unused = options.static_graph,
                            .delayed = plan.delayed,
                            .delay_until = plan.delay_until});
  layouts = std::move(graph.layouts);
  for (std::size_t index = 0; index < layouts.size(); ++index) {
    const bool is_exchanged = planned.places[index].exchange != ExchangeSchedule::kNoBucket;
    if (is_exchanged && layouts[index] == GradientLayout::kUnknown) unreached.push_back(index);
  }
  adopt_plan();
  is_planned = true;
  last_additions = {};
}

void GradientReducer::Impl::adopt_plan() {
  recorder->plan(layout_of(planned, parameters, names, exchange));
  abouts.clear();
  std::vector<std::size_t> bucket_of;
  for (std::size_t number = 0; number < planned.exchanges.size(); ++number) {
    abouts.push_back(about(number));
  }
  for (const ExchangePlace& place : planned.places) bucket_of.push_back(place.exchange);
  schedule = ExchangeSchedule(std::move(bucket_of), planned.exchanges.size());
}

ObservedGraph GradientReducer::Impl::observe() const {
  ObservedGraph graph;
  std::vector<bool> seen(parameters.size());
  // A gradient is complete with its last addition. Parameters without one come last.
  for (auto index = last_additions.rbegin(); index != last_additions.rend(); ++index) {
    if (!seen[*index]) graph.order.push_back(*index);
    seen[*index] = true;
  }
  std::reverse(graph.order.begin(), graph.order.end());
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    if (!seen[index]) graph.order.push_back(index);
    graph.layouts.push_back(own_layout(index));
  }
  return graph;
}

GradientLayout GradientReducer::Impl::own_layout(std::size_t index) const {
  const at::Tensor& gradient = parameters[index].grad();
  if (!gradient.defined()) return GradientLayout::kUnknown;
  return gradient.is_sparse() ? GradientLayout::kSparse : GradientLayout::kStrided;
}

void GradientReducer::Impl::check_layout(std::size_t index) const {
  const at::Tensor& gradient = parameters[index].grad();
  const GradientLayout known = layouts[index];
  if (!gradient.defined() || known == GradientLayout::kUnknown) return;
  const bool sparse = known == GradientLayout::kSparse;
  if (gradient.layout() == (sparse ? at::kSparse : at::kStrided)) return;
  throw usage_error(index, concat("has a ", sparse ? "strided" : "sparse",
                                  " gradient where some rank had a ", sparse ? "sparse" : "strided",
                                  " one in the first backward pass that reached it; use it in one "
                                  "way only"));
}

void GradientReducer::Impl::refuse_both_layouts(std::size_t index) const {
  throw usage_error(index,
                    "has a sparse gradient on some rank and a strided one on another; use it in "
                    "one way only");
}

void GradientReducer::Impl::note_unreached() {
  own_layouts.clear();
  for (const std::size_t index : unreached) own_layouts.push_back(own_layout(index));
}

// Where a rank has reached one of them, for the first time, all ranks know by what travels beside
// the gradients: now .grad is defined on all of them.
void GradientReducer::Impl::settle_unreached() {
  std::vector<std::size_t> reached_now;
  std::vector<GradientLayout> own;
  for (std::size_t i = 0; i < unreached.size(); ++i) {
    if (!parameters[unreached[i]].grad().defined()) continue;
    reached_now.push_back(unreached[i]);
    own.push_back(own_layouts[i]);
  }
  if (reached_now.empty()) return;
  const std::vector<GradientLayout> agreed = agree_on_layouts(group, own);
  std::vector<std::size_t> sparse;
  for (std::size_t i = 0; i < reached_now.size(); ++i) {
    const std::size_t index = reached_now[i];
    if (agreed[i] == GradientLayout::kBoth) refuse_both_layouts(index);
    layouts[index] = agreed[i];
    if (agreed[i] != GradientLayout::kSparse) continue;
    // The zeros that were exchanged in its place.
    if (own[i] == GradientLayout::kUnknown) parameters[index].mutable_grad() = at::Tensor();
    sparse.push_back(index);
  }
  std::erase_if(unreached,
                [&](std::size_t index) { return layouts[index] != GradientLayout::kUnknown; });
  if (!sparse.empty()) exchange_as_sparse(sparse);
}

void GradientReducer::Impl::exchange_as_sparse(const std::vector<std::size_t>& indices) {
  std::vector<std::size_t> numbers;
  for (const std::size_t index : indices) {
    // In a group of one rank gradients of any layout stay where they are.
    if (planned.kinds[planned.places[index].exchange] == BucketKind::kNotExchanged) continue;
    lockstep::exchange_as_sparse(planned, index, parameters[index], group, exchange);
    numbers.push_back(planned.places[index].exchange);
  }
  if (numbers.empty()) return;
  adopt_plan();
  for (const std::size_t number : numbers) fill(planned.exchanges[number]->indices()[0]);
  for (const std::size_t number : numbers) start(number);
  for (const std::size_t number : numbers) finish(number);
}

}  // namespace lockstep::inline internal
