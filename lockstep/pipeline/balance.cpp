#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/pipeline/pipeline.h"

namespace lockstep {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

void check_costs(const std::vector<double>& costs, int stages) {
  if (stages < 1 || static_cast<std::size_t>(stages) > costs.size()) {
    throw UsageError(concat("divide ", costs.size(), " layers into ", stages,
                            " stages: each stage needs a layer; take fewer stages"));
  }
  for (std::size_t i = 0; i < costs.size(); ++i) {
    if (!(costs[i] >= 0) || !std::isfinite(costs[i])) {
      throw UsageError(concat("divide layers into stages: layer ", i, " costs ", costs[i],
                              "; costs are numbers of at least 0"));
    }
  }
}

// The best way to cut, where a cut is as good as join(how good it is before its last stage, the
// cost of that), less being better. Of equals the one whose last stage begins latest: what costs
// nothing stays with what is before it.
template <class Join>
class BestCuts {
 public:
  BestCuts(const std::vector<double>& costs, int stages, Join join)
      : layers_(costs.size()), sums_(layers_ + 1, 0.0) {
    for (std::size_t i = 0; i < layers_; ++i) sums_[i + 1] = sums_[i] + costs[i];
    std::vector<double> best(layers_ + 1, kImpossible);
    best[0] = 0;
    for (int stage = 0; stage < stages; ++stage) {
      std::vector<double> next(layers_ + 1, kImpossible);
      std::vector<std::size_t> starts(layers_ + 1, 0);
      for (std::size_t end = 1; end <= layers_; ++end) {
        for (std::size_t start = 0; start < end; ++start) {
          const double value = join(best[start], sums_[end] - sums_[start]);
          if (best[start] == kImpossible || value > next[end]) continue;
          next[end] = value;
          starts[end] = start;
        }
      }
      best = std::move(next);
      starts_.push_back(std::move(starts));
    }
    value_ = best[layers_];
  }

  double value() const { return value_; }

  std::vector<std::int64_t> cuts() const {
    std::vector<std::int64_t> cuts;
    std::size_t end = layers_;
    for (std::size_t stage = starts_.size() - 1; stage > 0; --stage) {
      end = starts_[stage][end];
      cuts.push_back(static_cast<std::int64_t>(end));
    }
    std::reverse(cuts.begin(), cuts.end());
    return cuts;
  }

 private:
  std::size_t layers_;
  std::vector<double> sums_;                      // of the layers before each
  std::vector<std::vector<std::size_t>> starts_;  // [stage][its end]: where it begins
  double value_ = kImpossible;
};

}  // namespace

std::vector<std::int64_t> balance_stages(const std::vector<double>& costs, int stages) {
  check_costs(costs, stages);
  const double dearest = BestCuts(costs, stages, [](double before, double cost) {
                           return std::max(before, cost);
                         }).value();
  return BestCuts(costs, stages,
                  [&](double before, double cost) {
                    return cost <= dearest ? before + cost * cost : kImpossible;
                  })
      .cuts();
}

}  // namespace lockstep
