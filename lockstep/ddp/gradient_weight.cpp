#include "lockstep/ddp/gradient_weight.h"

#include <algorithm>

namespace lockstep {

GradientWeight::Parts GradientWeight::parts_of(double weight, bool loss_holds_it) {
  if (kind_ == Kind::kUnknown) has_unit_ = !loss_holds_it;
  if (weight == 0) return {.seed = loss_holds_it ? 0.0 : 1.0, .factor = 0};
  if (!has_unit_) {
    return loss_holds_it ? Parts{.seed = weight, .factor = 1} : Parts{.seed = 1, .factor = weight};
  }
  if (unit_ == 0) unit_ = weight;
  return {.seed = 1, .factor = weight / unit_};
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

}  // namespace lockstep
