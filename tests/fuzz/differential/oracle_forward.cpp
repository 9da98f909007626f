#include "tests/fuzz/differential/oracle_forward.h"

#include <ATen/ATen.h>

namespace lockstep::differential {
namespace {

constexpr double kMomentum = 0.1;
constexpr double kEpsilon = 1e-5;

// By formula: what is normalized is the batch of all ranks together.
at::Tensor normalize(Model& model, const OpPlan& op, const at::Tensor& own,
                     const at::Tensor& whole) {
  const at::Tensor mean = whole.mean(0);
  const at::Tensor variance = (whole - mean).square().mean(0);
  {
    const at::NoGradGuard no_grad;
    const auto count = static_cast<double>(whole.size(0));
    model.running_mean.mul_(1 - kMomentum).add_(mean, kMomentum);
    model.running_var.mul_(1 - kMomentum).add_(variance * (count / (count - 1)), kMomentum);
    model.batches_tracked.add_(1);
  }
  return (own - mean) / (variance + kEpsilon).sqrt() * model.parameters[op.parameter] +
         model.parameters[op.second];
}

std::vector<at::Tensor> normalize_all(const Plan& plan, const OpPlan& op,
                                      std::vector<Model>& models,
                                      const std::vector<at::Tensor>& values) {
  std::vector<at::Tensor> results;
  const at::Tensor whole = at::cat(values);
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    results.push_back(
        normalize(models[rank], op, values[rank], plan.syncs_batch_norm ? whole : values[rank]));
  }
  return results;
}

}  // namespace

std::vector<at::Tensor> forward_all_ranks(const Plan& plan, std::vector<Model>& models,
                                          const std::vector<at::Tensor>& inputs, int step) {
  std::vector<at::Tensor> last = inputs;
  std::vector<at::Tensor> first;
  for (const OpPlan& op : plan.ops) {
    std::vector<at::Tensor> values = op.is_side ? first : last;
    if (op.kind == OpKind::kBatchNorm) values = normalize_all(plan, op, models, values);
    for (int rank = 0; rank < plan.ranks; ++rank) {
      if (plan.is_left_out(op, step, rank)) continue;
      at::Tensor& value = values[rank];
      if (op.kind == OpKind::kBuffer) change_buffer(plan, models[rank].buffer, inputs[rank]);
      const at::Tensor before = first.empty() ? inputs[rank] : first[rank];
      for (int use = 0; op.kind != OpKind::kBatchNorm && use < plan.uses(op, step); ++use) {
        value = apply_op(plan, op, models[rank], value, before, inputs[rank]);
      }
      last[rank] = combine(plan, op, last[rank], value);
    }
    if (first.empty()) first = last;
  }
  return last;
}

}  // namespace lockstep::differential
