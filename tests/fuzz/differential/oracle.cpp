#include "tests/fuzz/differential/oracle.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/optimizer.h>

#include "tests/fuzz/differential/optimizer.h"
#include "tests/fuzz/differential/oracle_forward.h"

namespace lockstep::differential {
namespace {

bool is_power_of_two(double number) {
  int exponent = 0;
  return number > 0 && std::frexp(number, &exponent) == 0.5;
}

at::Tensor sum_of(const at::Tensor& sum, const at::Tensor& part) {
  if (!part.defined()) return sum;
  const at::Tensor dense = part.is_sparse() ? part.to_dense() : part;
  return sum.defined() ? sum + dense : dense.detach().clone();
}

}  // namespace

Oracle::Oracle(const Plan& plan) : plan_(plan) {
  for (int rank = 0; rank < plan.ranks; ++rank) models_.push_back(make_model(plan, rank));
  const at::NoGradGuard no_grad;
  for (Model& model : models_) {
    for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
      if (!plan.parameters[i].is_ignored) model.parameters[i].copy_(models_[0].parameters[i]);
    }
    optimizers_.push_back(with_optimizer(plan, [&]<class Optimizer>(const auto& options) {
      return std::unique_ptr<torch::optim::Optimizer>(
          std::make_unique<Optimizer>(trained(plan, model), options));
    }));
  }
  gradients_.assign(plan.ranks, Gradients(plan.parameters.size()));
  taken_ = gradients_;
  losses_.resize(plan.ranks);
  inputs_.resize(plan.ranks);
  magnitudes_.resize(plan.parameters.size());
  is_whole_.resize(plan.parameters.size());
  is_averaged_.resize(plan.parameters.size());
  is_left_out_.resize(plan.parameters.size());
}

Oracle::~Oracle() = default;

void Oracle::act(GradAction action) {
  for (Gradients& gradients : gradients_) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!plan_.parameters[i].is_trained) continue;
      const at::Tensor& parameter = models_[0].parameters[i];
      if (action == GradAction::kSetToNone) gradients[i] = at::Tensor();
      if (action == GradAction::kZeroInPlace && gradients[i].defined()) {
        gradients[i] = at::zeros_like(gradients[i]);
      }
      if (action == GradAction::kAssignZeros) gradients[i] = at::zeros_like(parameter.detach());
      if (action == GradAction::kAssignNines) gradients[i] = at::full_like(parameter.detach(), 9);
    }
  }
}

void Oracle::run_pass(int step, int pass) {
  const PassPlan& planned = plan_.steps[step].passes[pass];
  act(planned.action);
  if (!planned.reuses_graph) forward(step, pass);
  backward(step, pass);
}

void Oracle::forward(int step, int pass) {
  const PassPlan& planned = plan_.steps[step].passes[pass];
  for (at::Tensor& loss : losses_) loss = at::Tensor();
  for (int number = 0; number < planned.forwards; ++number) {
    if (planned.exchanges || !planned.guards_forward) share_buffers();
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      const Place place{step, pass, rank, number};
      inputs_[rank] = make_input(plan_, place).requires_grad_();
    }
    const std::vector<at::Tensor> outputs = forward_all_ranks(plan_, models_, inputs_, step);
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      const Place place{step, pass, rank, number};
      const at::Tensor loss =
          plan_.reaches_nothing(planned, rank)
              ? make_loss_that_reaches_nothing(inputs_[rank])
              : make_loss(plan_, place, models_[rank], inputs_[rank], outputs[rank]);
      losses_[rank] = losses_[rank].defined() ? losses_[rank] + loss : loss;
    }
  }
}

Oracle::Gradients Oracle::own_gradients(int rank, const at::Tensor& loss, bool create_graph) const {
  Gradients gradients(plan_.parameters.size());
  const std::vector<at::Tensor> inputs = trained(plan_, models_[rank]);
  const std::vector<at::Tensor> found =
      torch::autograd::grad({loss}, inputs, {}, /*retain_graph=*/true, create_graph, true);
  std::size_t next = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!plan_.parameters[i].is_trained) continue;
    gradients[i] = found[next++];
    const int factor = plan_.parameters[i].hook_factor;
    if (gradients[i].defined() && factor != 1) gradients[i] = gradients[i] * factor;
  }
  return gradients;
}

void Oracle::backward(int step, int pass) {
  const PassPlan& planned = plan_.steps[step].passes[pass];
  const bool twice = plan_.double_backward && planned.exchanges;
  // Statistics of all ranks' samples connect the ranks' losses.
  at::Tensor all = losses_[0];
  for (int rank = 1; rank < plan_.ranks; ++rank) {
    if (plan_.syncs_batch_norm) all = all + losses_[rank];
  }
  std::vector<Gradients> with_graph(plan_.ranks);
  for (int rank = 0; rank < plan_.ranks; ++rank) {
    double weight = plan_.is_weighted && !planned.takes_gradients ? planned.weights[rank] : 1;
    at::Tensor loss = losses_[rank];
    if (plan_.syncs_batch_norm) {
      loss = all;
      if (plan_.is_weighted && !planned.takes_gradients) {
        loss = losses_[0] * planned.weights[0];
        for (int other = 1; other < plan_.ranks; ++other) {
          loss = loss + losses_[other] * planned.weights[other];
        }
      }
      weight = weight == 0 ? 0 : 1;
    }
    Gradients own = own_gradients(rank, loss, twice);
    if (planned.takes_gradients) {
      taken_[rank] = std::move(own);
      continue;
    }
    const bool counts = planned.has_data[rank] && weight > 0;
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (!own[i].defined()) continue;
      at::Tensor part = own[i].is_sparse() ? own[i].to_dense() : own[i];
      part = counts ? part * weight : at::zeros_like(part);
      gradients_[rank][i] = sum_of(gradients_[rank][i], part.detach());
    }
    with_graph[rank] = std::move(own);
  }
  const unsigned all_ranks = (1U << plan_.ranks) - 1;
  const bool begins = plan_.is_weighted || planned.reaches_nothing != all_ranks;
  if (!planned.exchanges || planned.takes_gradients || !begins) return;
  exchange(step, pass);
  if (twice) double_backward(with_graph);
}

// Of Σ average², where the average has the graph of the rank's own gradient.
void Oracle::double_backward(std::vector<Gradients>& with_graph) {
  std::vector<Gradients> seconds(plan_.ranks, Gradients(plan_.parameters.size()));
  for (int rank = 0; rank < plan_.ranks; ++rank) {
    std::vector<at::Tensor> outputs;
    std::vector<at::Tensor> factors;
    for (std::size_t i = 0; i < with_graph[rank].size(); ++i) {
      if (!with_graph[rank][i].defined() || !with_graph[rank][i].requires_grad()) continue;
      outputs.push_back(with_graph[rank][i]);
      factors.push_back(gradients_[rank][i] * 2);
    }
    const std::vector<at::Tensor> found =
        torch::autograd::grad(outputs, trained(plan_, models_[rank]), factors, true, false, true);
    std::size_t next = 0;
    for (std::size_t i = 0; i < plan_.parameters.size(); ++i) {
      if (plan_.parameters[i].is_trained) seconds[rank][i] = found[next++];
    }
  }
  gradients_ = std::move(seconds);
  for (Gradients& gradients : gradients_) {
    for (at::Tensor& gradient : gradients) {
      if (gradient.defined()) gradient = gradient.detach().clone();
    }
  }
  is_exact_ = false;
  note_magnitudes(1);
  for (std::size_t i = 0; i < plan_.parameters.size(); ++i) {
    const at::Tensor average = averaged(i, 0, 1);
    for (Gradients& gradients : gradients_) gradients[i] = average;
  }
  ++exchanges_;
  share_buffers();
}

void Oracle::note_magnitudes(double factor) {
  for (std::size_t i = 0; i < plan_.parameters.size(); ++i) {
    at::Tensor sum;
    is_whole_[i] = true;
    for (const Gradients& gradients : gradients_) {
      if (!gradients[i].defined()) continue;
      sum = sum_of(sum, gradients[i].abs().to(at::kDouble));
      // A part is rounded where it is scaled before the sum.
      is_whole_[i] = is_whole_[i] && is_whole(dense(gradients[i]).to(at::kDouble) * (8 * factor));
    }
    magnitudes_[i] = sum;
  }
}

at::Tensor Oracle::averaged(std::size_t parameter, int, double scale) const {
  at::Tensor sum;
  for (const Gradients& gradients : gradients_) {
    const at::Tensor& gradient = gradients[parameter];
    if (!gradient.defined()) continue;
    const bool is_complex = gradient.is_complex();
    sum = sum_of(sum, gradient.to(is_complex ? at::kComplexDouble : at::kDouble));
  }
  if (!sum.defined()) return sum;
  return (sum * (scale / plan_.ranks)).to(models_[0].parameters[parameter].scalar_type());
}

void Oracle::exchange(int step, int pass) {
  const ExchangeGroup group = group_of(plan_, step, pass);
  double scale = 1;
  is_exact_ = !plan_.has(OpKind::kBatchNorm);
  if (plan_.is_weighted) {
    scale = group.weight > 0 ? plan_.ranks / group.weight : 0;
    is_exact_ = is_exact_ && is_power_of_two(group.weight);
  } else if (plan_.joins) {
    scale = static_cast<double>(plan_.ranks) / group.ranks_with_data;
  }
  note_magnitudes(scale / plan_.ranks);
  std::vector<Gradients> results = gradients_;
  for (std::size_t i = 0; i < plan_.parameters.size(); ++i) {
    const ParameterPlan& parameter = plan_.parameters[i];
    if (exchanges_ == 0 && plan_.options.static_graph) is_left_out_[i] = !magnitudes_[i].defined();
    is_averaged_[i] = parameter.is_trained && !parameter.is_ignored && !is_left_out_[i];
    if (!is_averaged_[i]) continue;
    const bool is_sparse = std::any_of(plan_.ops.begin(), plan_.ops.end(), [&](const OpPlan& op) {
      return op.sparse && op.parameter == static_cast<int>(i);
    });
    const HookPlan hook = is_sparse ? HookPlan::kNone : plan_.options.hook;
    const bool is_local = hook == HookPlan::kNoop || (hook == HookPlan::kLocalSgd &&
                                                      exchanges_ >= plan_.options.local_sgd_from);
    at::Tensor average = averaged(i, 0, scale);
    if (hook == HookPlan::kHalve && average.defined()) average = average / 2;
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      at::Tensor& result = results[rank][i];
      if (!is_local) {
        result = average;
      } else if (average.defined()) {
        result = result.defined() ? result * scale : at::zeros_like(average);
      }
    }
  }
  gradients_ = std::move(results);
  ++exchanges_;
  share_buffers();
}

void Oracle::share_buffers() {
  if (!plan_.options.forward_sync_buffers) return;
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> source = models_[0].buffers();
  for (Model& model : models_) {
    std::vector<at::Tensor> target = model.buffers();
    for (std::size_t i = 0; i < target.size(); ++i) target[i].copy_(source[i]);
  }
}

double Oracle::norm(int rank, Of which) const {
  double squares = 0;
  for (std::size_t i = 0; i < plan_.parameters.size(); ++i) {
    const at::Tensor& gradient = gradients_[rank][i];
    if (!gradient.defined() || (which == Of::kExchanged && !is_averaged_[i])) continue;
    const at::Tensor real = gradient.is_complex() ? at::view_as_real(gradient) : gradient;
    squares += real.to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(squares);
}

double Oracle::clip() {
  double total = 0;
  for (int rank = 0; rank < plan_.ranks; ++rank) {
    double largest = 0;
    for (const at::Tensor& gradient : gradients_[rank]) {
      if (!gradient.defined() || gradient.numel() == 0) continue;
      const double own = gradient.abs().max().item<double>();
      if (!(own <= largest)) largest = own;
      if (std::isnan(largest)) break;
    }
    const Of which = plan_.clip == ClipPlan::kKnownNorm ? Of::kExchanged : Of::kAll;
    total = plan_.clip == ClipPlan::kInfinityNorm ? largest : norm(rank, which);
    const double factor = std::isnan(total) ? total : std::min(1.0, kMaxNorm / (total + 1e-6));
    for (at::Tensor& gradient : gradients_[rank]) {
      if (!gradient.defined()) continue;
      gradient =
          plan_.clip == ClipPlan::kValue ? gradient.clamp(-kMaxNorm, kMaxNorm) : gradient * factor;
    }
  }
  return total;
}

void Oracle::update() {
  for (int rank = 0; rank < plan_.ranks; ++rank) {
    for (std::size_t i = 0; i < plan_.parameters.size(); ++i) {
      models_[rank].parameters[i].mutable_grad() = gradients_[rank][i];
    }
    optimizers_[rank]->step();
    for (at::Tensor& parameter : models_[rank].parameters) parameter.mutable_grad() = at::Tensor();
    round_parameters(trained(plan_, models_[rank]));
    if (!plan_.options.one_copy_per_machine) continue;
    // The step has used them.
    for (std::size_t i = 0; i < plan_.parameters.size(); ++i) {
      const ParameterPlan& parameter = plan_.parameters[i];
      if (parameter.is_trained && !parameter.is_ignored) gradients_[rank][i] = at::Tensor();
    }
  }
}

void Oracle::adopt(int rank, std::size_t parameter, const at::Tensor& gradient, bool is_average) {
  const bool is_alike = is_average && is_averaged_[parameter] && plan_.keeps_replicas_equal();
  for (int other = 0; other < plan_.ranks; ++other) {
    if (other == rank || is_alike) gradients_[other][parameter] = gradient.clone();
  }
}

}  // namespace lockstep::differential
