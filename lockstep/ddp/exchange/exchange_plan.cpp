#include "lockstep/ddp/exchange/exchange_plan.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "lockstep/ddp/exchange/exchange_schedule.h"
#include "lockstep/ddp/exchange/gradient_bucket.h"
#include "lockstep/ddp/exchange/hooked_bucket.h"
#include "lockstep/ddp/exchange/large_gradient.h"
#include "lockstep/ddp/exchange/own_gradients.h"
#include "lockstep/ddp/exchange/sparse_gradient.h"

namespace lockstep::inline internal {
namespace {

std::vector<GradientShape> shapes_of(const std::vector<at::Tensor>& parameters,
                                     const ProcessGroup& group, const ExchangeOptions& exchange,
                                     const ObservedGraph& graph, const BucketCaps& caps) {
  std::vector<GradientShape> shapes;
  std::map<std::pair<at::ScalarType, std::string>, int> kinds;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const at::Tensor& parameter = parameters[index];
    const auto [kind, is_new] =
        kinds.try_emplace({parameter.scalar_type(), parameter.device().str()}, kinds.size());
    const auto bytes = static_cast<std::int64_t>(parameter.nbytes());
    // One that fills a bucket and may turn out to be sparse: that would leave its place unused.
    const bool may_leave = graph.layouts[index] == GradientLayout::kUnknown && bytes >= caps.back();
    const bool alone = graph.layouts[index] == GradientLayout::kSparse || may_leave ||
                       LargeGradient::suits(group, exchange, parameter);
    shapes.push_back({.bytes = bytes, .kind = kind->second, .alone = alone});
  }
  return shapes;
}

// The buckets of those that are not delayed, then, where their turn is, of those that are.
std::vector<Bucket> plan_with_delay(const std::vector<GradientShape>& shapes,
                                    const std::vector<std::size_t>& order,
                                    const ExchangePlanOptions& options) {
  const auto is_delayed = [&](std::size_t index) {
    return std::find(options.delayed.begin(), options.delayed.end(), index) !=
           options.delayed.end();
  };
  std::vector<std::size_t> at_once;
  std::vector<std::size_t> later;
  for (const std::size_t index : order) (is_delayed(index) ? later : at_once).push_back(index);
  std::vector<Bucket> buckets = plan_buckets(shapes, at_once, options.caps);
  const std::vector<Bucket> delayed = plan_buckets(shapes, later, options.caps);
  const auto after = std::find_if(buckets.begin(), buckets.end(), [&](const Bucket& bucket) {
    return std::find(bucket.begin(), bucket.end(), options.delay_until) != bucket.end();
  });
  buckets.insert(after == buckets.end() ? after : after + 1, delayed.begin(), delayed.end());
  return buckets;
}

BucketKind kind_of(GradientLayout layout, const at::Tensor& first, const ProcessGroup& group,
                   const ExchangeOptions& exchange) {
  if (group.world_size() == 1 && !exchange.comm_hook) return BucketKind::kNotExchanged;
  if (layout == GradientLayout::kSparse) return BucketKind::kSparseGradient;
  if (LargeGradient::suits(group, exchange, first)) return BucketKind::kLargeGradient;
  return exchange.comm_hook ? BucketKind::kCommHook : BucketKind::kBucket;
}

// `number`: of the hook's buckets.
std::unique_ptr<GradientExchange> make_exchange(BucketKind kind, const ProcessGroup& group,
                                                const ExchangeOptions& exchange, std::size_t number,
                                                Bucket bucket, std::vector<at::Tensor> members) {
  switch (kind) {
    case BucketKind::kNotExchanged:
      return std::make_unique<OwnGradients>(exchange, std::move(bucket), std::move(members));
    case BucketKind::kSparseGradient:
      return std::make_unique<SparseGradient>(group, exchange, bucket[0], members[0]);
    case BucketKind::kLargeGradient:
      return std::make_unique<LargeGradient>(group, exchange, bucket[0], members[0]);
    case BucketKind::kCommHook:
      return std::make_unique<HookedBucket>(group, exchange, number, std::move(bucket), members);
    case BucketKind::kBucket:
      break;
  }
  return std::make_unique<GradientBucket>(group, exchange, std::move(bucket), members);
}

}  // namespace

ExchangePlan plan_exchanges(const std::vector<at::Tensor>& parameters, const ProcessGroup& group,
                            const ExchangeOptions& exchange, const ObservedGraph& graph,
                            const ExchangePlanOptions& options) {
  std::vector<std::size_t> order;
  for (const std::size_t index : graph.order) {
    const bool is_unused = graph.layouts[index] == GradientLayout::kUnknown;
    if (!is_unused || !options.leave_out_unused) order.push_back(index);
  }
  const std::vector<GradientShape> shapes =
      shapes_of(parameters, group, exchange, graph, options.caps);
  ExchangePlan plan;
  std::size_t hooked = 0;  // buckets
  plan.places.assign(parameters.size(), {ExchangeSchedule::kNoBucket});
  for (Bucket& bucket : plan_with_delay(shapes, order, options)) {
    std::vector<at::Tensor> members;
    for (std::size_t position = 0; position < bucket.size(); ++position) {
      plan.places[bucket[position]] = {plan.exchanges.size(), position};
      members.push_back(parameters[bucket[position]]);
    }
    plan.kinds.push_back(kind_of(graph.layouts[bucket[0]], members[0], group, exchange));
    plan.exchanges.push_back(make_exchange(plan.kinds.back(), group, exchange, hooked,
                                           std::move(bucket), std::move(members)));
    if (plan.kinds.back() == BucketKind::kCommHook) ++hooked;
  }
  return plan;
}

void exchange_as_sparse(ExchangePlan& plan, std::size_t index, const at::Tensor& parameter,
                        const ProcessGroup& group, const ExchangeOptions& exchange) {
  auto sparse = std::make_unique<SparseGradient>(group, exchange, index, parameter);
  ExchangePlace& place = plan.places[index];
  const auto members =
      std::count_if(plan.places.begin(), plan.places.end(),
                    [&](const ExchangePlace& other) { return other.exchange == place.exchange; });
  if (members == 1) {
    plan.exchanges[place.exchange] = std::move(sparse);
    plan.kinds[place.exchange] = BucketKind::kSparseGradient;
    place.position = 0;
    return;
  }
  plan.exchanges[place.exchange]->leave_out(place.position);
  place = {.exchange = plan.exchanges.size()};
  plan.exchanges.push_back(std::move(sparse));
  plan.kinds.push_back(BucketKind::kSparseGradient);
}

std::vector<BucketLayout> layout_of(const ExchangePlan& plan,
                                    const std::vector<at::Tensor>& parameters,
                                    const std::vector<std::string>& names,
                                    const ExchangeOptions& exchange) {
  std::vector<BucketLayout> layout;
  for (std::size_t number = 0; number < plan.exchanges.size(); ++number) {
    const std::vector<std::size_t>& indices = plan.exchanges[number]->indices();
    BucketLayout& bucket = layout.emplace_back();
    bucket.kind = plan.kinds[number];
    bucket.dtype = parameters[indices[0]].scalar_type();
    if (bucket.kind == BucketKind::kBucket && exchange.converts(parameters[indices[0]])) {
      bucket.dtype = *exchange.dtype;
    }
    for (const std::size_t index : indices) {
      if (plan.places[index].exchange != number) continue;
      bucket.parameters.push_back(names[index]);
      bucket.bytes +=
          parameters[index].numel() * static_cast<std::int64_t>(c10::elementSize(bucket.dtype));
    }
  }
  return layout;
}

}  // namespace lockstep::inline internal
