#include "lockstep/ddp/exchange/gradient_weight.h"

#include <algorithm>
#include <cmath>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace lockstep::inline internal {

namespace {

// Above it a float16 gradient of ordinary size may overflow.
constexpr double kMostHalfSeed = 2048;

// The weight as the gradient of such a loss can hold it; 1 where it cannot.
double seed_of(double weight, at::ScalarType loss) {
  double seed = 1;
  if (GradientWeight::is_held_by(loss)) {
    seed = weight;
  } else if (loss == at::kHalf && weight <= kMostHalfSeed) {
    seed = static_cast<float>(c10::Half(static_cast<float>(weight)));
  } else if (loss == at::kBFloat16) {
    seed = static_cast<float>(c10::BFloat16(static_cast<float>(weight)));
  }
  return seed > 0 && std::isfinite(seed) ? seed : 1;
}

}  // namespace

bool GradientWeight::is_held_by(at::ScalarType loss) {
  return loss == at::kFloat || loss == at::kDouble;
}

GradientWeight::Parts GradientWeight::parts_of(double weight, at::ScalarType loss) {
  if (kind_ == Kind::kUnknown) has_unit_ = !is_held_by(loss);
  if (weight == 0) return {.seed = 0, .factor = 0};
  const double seed = seed_of(weight, loss);
  const double rest = weight / seed;
  if (!has_unit_) return {.seed = seed, .factor = rest};
  if (unit_ == 0) unit_ = rest;
  return {.seed = seed, .factor = rest / unit_};
}

std::optional<double> GradientWeight::unit() const {
  if (!is_weighted() || !has_unit_) return std::nullopt;
  return unit_;
}

bool GradientWeight::add(const WeightedPass::Facts* pass) {
  const Kind kind = pass != nullptr ? Kind::kWeighted : Kind::kPlain;
  if (kind_ == Kind::kUnknown) kind_ = kind;
  if (kind_ != kind) return false;
  if (pass != nullptr && pass->number != last_pass_) {
    weight_ += pass->weight;
    last_pass_ = pass->number;
  }
  return true;
}

void GradientWeight::forget() {
  kind_ = Kind::kUnknown;
  weight_ = 0;
  has_unit_ = false;
  unit_ = 0;
}

void GradientWeight::cast_vote(bool has_data, int vote) {
  vote_ = Vote{.has_data = has_data, .own = vote};
}

std::optional<int> GradientWeight::withdraw_vote() {
  const auto highest = vote_ ? vote_->highest : std::nullopt;
  vote_.reset();
  return highest;
}

std::optional<Agreement::Numbers> GradientWeight::to_tell() const {
  if (!is_weighted() && !vote_) return std::nullopt;
  const double own = is_weighted() ? weight_ : (vote_->has_data ? 1 : 0);
  return Agreement::Numbers{own, vote_ ? vote_->own : 0.0};
}

double GradientWeight::scale(const std::vector<Agreement::Numbers>& of_ranks) {
  double total = 0;
  for (const Agreement::Numbers& of_rank : of_ranks) total += of_rank[0];
  return total > 0 ? static_cast<double>(of_ranks.size()) / total : 0;
}

void GradientWeight::count_votes(const Agreement& agreement) {
  if (!vote_) return;
  vote_->highest = 0;
  for (const Agreement::Numbers& of_rank : agreement.get()) {
    vote_->highest = std::max(*vote_->highest, static_cast<int>(of_rank[1]));
  }
}

}  // namespace lockstep::inline internal
