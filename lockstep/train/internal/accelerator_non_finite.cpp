// What an accelerator does with losses and gradients that are not finite.
#include <algorithm>
#include <cmath>

#include <ATen/ops/isfinite.h>
#include <torch/optim/optimizer.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/train/accelerator_state.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostNames = 3;

bool is_finite(const at::Tensor& tensor) {
  return at::isfinite(tensor).all().item<bool>();
}

std::string some_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
    text += concat(i > 0 ? ", " : "", names[i]);
  }
  if (names.size() > kMostNames) text += concat(" and ", names.size() - kMostNames, " others");
  return text;
}

}  // namespace

std::vector<std::string> PreparedReplica::names_not_finite(const TensorDict& tensors) {
  std::vector<std::int64_t> are_bad;
  for (const auto& [name, tensor] : tensors) {
    are_bad.push_back(tensor.defined() && !is_finite(tensor) ? 1 : 0);
  }
  std::vector<std::vector<std::int64_t>> of_ranks{are_bad};
  if (const ShardedModule* const own = sharded()) {
    of_ranks = gather_rows(own->process_group(), are_bad);
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto is_bad = [&](const auto& row) { return row[i] != 0; };
    if (std::ranges::any_of(of_ranks, is_bad)) names.push_back(tensors[i].first);
  }
  return names;
}

bool AcceleratorState::look_at_gradients(PreparedOptimizerState& stepped) {
  if (options_.non_finite == NonFinite::kIgnore) return true;
  // Gradients that are scaled may overflow, and the scaler skips such steps.
  if (scaler_.is_enabled()) return look_at_losses();
  if (shards_) {
    const auto is_finite_in = [](const auto& group) {
      return std::ranges::all_of(group.params(), [](const at::Tensor& parameter) {
        return !parameter.grad().defined() || is_finite(parameter.grad());
      });
    };
    if (std::ranges::all_of(stepped.optimizer->param_groups(), is_finite_in)) return true;
    return judge(describe_non_finite(ranks_with_bad_loss()));
  }
  if (stepped.replicas.empty()) find_replicas(stepped);
  // The norm of a replica that had no backward pass for this step is an older one, or there is
  // none.
  const auto has_gradient = [](auto* replica) {
    const TensorDict parameters = replica->parameters();
    return std::ranges::any_of(parameters,
                               [](const auto& one) { return one.second.grad().defined(); });
  };
  const bool may_be_left_out = stepped.replicas.size() > 1;
  const auto is_bad = [&](auto* replica) {
    if (may_be_left_out && !has_gradient(replica)) return false;
    return !std::isfinite(replica->gradient_norm());
  };
  if (std::ranges::none_of(stepped.replicas, is_bad)) return true;
  return judge(describe_non_finite(ranks_with_bad_loss()));
}

bool AcceleratorState::look_at_losses() const {
  const std::vector<std::string> ranks = ranks_with_bad_loss();
  // The scaler leaves such a step out, and knows that it did.
  if (!ranks.empty()) judge(describe_non_finite(ranks));
  return true;
}

bool AcceleratorState::judge(const std::string& text) const {
  if (options_.non_finite == NonFinite::kStop) throw Error(text);
  const bool skips = options_.non_finite == NonFinite::kSkip || scaler_.is_enabled();
  if (group_.rank() == 0) {
    log(LogLevel::kWarning, concat(text, skips ? "; all ranks skip the step" : ""));
  }
  return !skips;
}

void AcceleratorState::find_replicas(PreparedOptimizerState& stepped) const {
  for (const auto& replica : replicas) {
    const TensorDict parameters = replica->parameters();
    const auto is_of_it = [&](const at::Tensor& parameter) {
      return std::ranges::any_of(parameters,
                                 [&](const auto& own) { return own.second.is_same(parameter); });
    };
    const auto has_some = [&](const auto& group) {
      return std::ranges::any_of(group.params(), is_of_it);
    };
    if (std::ranges::any_of(stepped.optimizer->param_groups(), has_some)) {
      stepped.replicas.push_back(replica.get());
    }
  }
}

// All ranks are here, as they have the same gradients, or look in each step.
std::vector<std::string> AcceleratorState::ranks_with_bad_loss() const {
  const bool own = std::ranges::all_of(losses_, is_finite);
  std::vector<std::string> ranks;
  int rank = 0;
  for (const auto& is_good : gather_rows(group_, {own ? 1 : 0})) {
    if (is_good[0] == 0) ranks.push_back(concat(rank));
    ++rank;
  }
  return ranks;
}

std::string AcceleratorState::describe_non_finite(const std::vector<std::string>& ranks) const {
  std::vector<std::string> names;
  for (const auto& replica : replicas) {
    TensorDict gradients = replica->parameters();
    std::vector<at::Tensor> parameters;
    for (const auto& [name, parameter] : gradients) parameters.push_back(parameter);
    const std::vector<at::Tensor> averages = averaged_gradients_of(parameters);
    for (std::size_t i = 0; i < averages.size(); ++i) gradients[i].second = averages[i];
    const std::vector<std::string> more = replica->names_not_finite(gradients);
    names.insert(names.end(), more.begin(), more.end());
  }
  return concat("step ", steps_ + 1, ": ",
                ranks.empty()
                    ? std::string("the loss is finite on all ranks, but gradients are not")
                    : concat("the loss is not finite on rank ", some_of(ranks)),
                "; gradients that are not finite: ", some_of(names));
}

}  // namespace lockstep
