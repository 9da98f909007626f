// What Lockstep documents that it does not take, so that what is left must be right.
#include <algorithm>
#include <optional>

#include "tests/fuzz/differential/plan.h"

namespace lockstep::differential {
namespace {

bool any_parameter(const Plan& plan, bool (*predicate)(const ParameterPlan&)) {
  return std::any_of(plan.parameters.begin(), plan.parameters.end(), predicate);
}

bool has_sparse(const Plan& plan) {
  return std::any_of(plan.ops.begin(), plan.ops.end(), [](const OpPlan& op) { return op.sparse; });
}

bool has_complex(const Plan& plan) {
  return any_parameter(plan, [](const ParameterPlan& p) { return c10::isComplexType(p.dtype); });
}

bool has_16_bit(const Plan& plan) {
  return any_parameter(plan, [](const ParameterPlan& p) {
    return p.dtype == at::kHalf || p.dtype == at::kBFloat16;
  });
}

bool has_checkpoint(const Plan& plan) {
  return std::any_of(plan.ops.begin(), plan.ops.end(),
                     [](const OpPlan& op) { return op.is_checkpointed; });
}

bool reuses(const Plan& plan) {
  for (const StepPlan& step : plan.steps) {
    for (const PassPlan& pass : step.passes) {
      if (pass.reuses_graph) return true;
    }
  }
  return false;
}

// One bucket that a parameter of the first operator completes, whatever came before how often.
bool has_one_bucket(const Plan& plan) {
  if (!plan.options.caps_mb.empty() || plan.options.find_unused_parameters) return false;
  if (plan.has(OpKind::kWide) || has_sparse(plan)) return false;
  for (const OpPlan& op : plan.ops) {
    // The first operator's, 0 and 1, come last only where nothing else recomputes them.
    if (op.is_checkpointed && (op.parameter == 0 || op.parameter == 1 || op.second == 1))
      return false;
  }
  return !any_parameter(plan, [](const ParameterPlan& p) { return p.is_delayed; }) &&
         std::all_of(plan.parameters.begin(), plan.parameters.end(),
                     [&](const ParameterPlan& p) { return p.dtype == plan.compute; });
}

struct Additions {
  int recomputed = 0;
  bool is_plain = false;
  int total() const { return recomputed + (is_plain ? 1 : 0); }
};

Additions additions(const Plan& plan, int parameter, int step, const PassPlan& pass, int rank) {
  Additions sum;
  for (const OpPlan& op : plan.ops) {
    const bool uses = op.parameter == parameter || op.second == parameter;
    if (!uses || plan.is_left_out(op, step, rank) || plan.reaches_nothing(pass, rank)) continue;
    if (op.is_checkpointed) sum.recomputed += plan.uses(op, step) * pass.forwards;
    if (!op.is_checkpointed) sum.is_plain = true;
  }
  return sum;
}

// Not more additions to a gradient in one pass than in the first that exchanges.
bool adds_no_more_than_at_first(const Plan& plan) {
  for (int parameter = 0; parameter < static_cast<int>(plan.parameters.size()); ++parameter) {
    for (int rank = 0; rank < plan.ranks; ++rank) {
      std::optional<Additions> first;
      for (int step = 0; step < static_cast<int>(plan.steps.size()); ++step) {
        const PassPlan* graph = nullptr;
        for (const PassPlan& pass : plan.steps[step].passes) {
          if (!pass.reuses_graph) graph = &pass;
          if (!pass.exchanges || pass.takes_gradients) continue;
          if (pass.reaches_nothing != 0 && !plan.is_weighted) continue;
          const Additions now = additions(plan, parameter, step, *graph, rank);
          if (!first) first = now;
          if (now.total() > std::max(first->total(), 1)) return false;
          // What is recomputed is not found in the outputs.
          if (plan.options.find_unused_parameters && now.recomputed > 0 && first->recomputed == 0) {
            return false;
          }
        }
      }
    }
  }
  return true;
}

// Autograd adds in place to what is already there, which may be a second view of what it has yet to
// read: without Lockstep, too.
bool adds_in_place_to_views(const Plan& plan) {
  for (const OpPlan& op : plan.ops) {
    if (op.kind != OpKind::kBias && op.kind != OpKind::kWide) continue;
    if (op.is_checkpointed) return true;
    for (const OpPlan& other : plan.ops) {
      if (other.is_checkpointed && other.parameter >= 0 &&
          (other.parameter == op.parameter || other.second == op.parameter)) {
        return true;
      }
    }
  }
  return false;
}

bool keeps_its_graph(const Plan& plan) {
  for (const StepPlan& step : plan.steps) {
    for (const PassPlan& pass : step.passes) {
      if (pass.reaches_nothing != 0) return false;
      // Without samples the operator is left out.
      if (has_empty_batch(pass) && plan.has(OpKind::kWide)) return false;
    }
  }
  for (const OpPlan& op : plan.ops) {
    for (const unsigned ranks : op.left_out) {
      if (ranks != op.left_out[0]) return false;
    }
    if (op.uses != op.later_uses) return false;
  }
  return true;
}

// What each rank has for itself the oracles of other ranks know only where it is exact. Penalties
// on gradients make numbers of any size.
bool has_own_state_that_rounds(const Plan& plan) {
  bool has_own_state = !plan.keeps_replicas_equal();
  bool rounds = plan.has(OpKind::kBatchNorm) || plan.penalizes_gradients;
  for (const ParameterPlan& parameter : plan.parameters) {
    has_own_state = has_own_state || parameter.is_ignored;
    rounds = rounds || parameter.dtype == at::kHalf || parameter.dtype == at::kBFloat16;
  }
  return has_own_state && rounds;
}

bool allows_options(const Plan& plan) {
  const OptionsPlan& options = plan.options;
  if (options.check_replicas_every > 0 && !plan.keeps_replicas_equal()) return false;
  if (options.gradient_norm && !plan.keeps_replicas_equal()) return false;
  if (has_own_state_that_rounds(plan)) return false;
  if (plan.is_sharded && !plan.keeps_replicas_equal()) return false;
  if (options.static_graph && !keeps_its_graph(plan)) return false;
  const bool ignores = any_parameter(plan, [](const ParameterPlan& p) { return p.is_ignored; });
  // Replicas that are to be compared or sharded hold the same bits.
  if (ignores && plan.is_sharded) return false;
  if (plan.clip == ClipPlan::kKnownNorm && !options.gradient_norm) return false;
  if (ignores && plan.clip != ClipPlan::kNone && plan.clip != ClipPlan::kValue) return false;
  // A norm per rank would differ.
  return plan.clip == ClipPlan::kNone || plan.clip == ClipPlan::kValue ||
         plan.keeps_replicas_equal();
}

bool allows_one_copy(const Plan& plan) {
  const OptionsPlan& options = plan.options;
  if (!options.one_copy_per_machine) return true;
  // Of two ranks over hierarchical each is alone on its machine: replicas.
  const bool shares_memory =
      plan.backend == Backend::kShm || (plan.backend == Backend::kHierarchical && plan.ranks > 2);
  if (plan.ranks == 1 || !shares_memory || plan.joins || plan.is_sharded) return false;
  if (options.hook != HookPlan::kNone || options.exchange_dtype || options.measure_exchange) {
    return false;
  }
  if (plan.clip == ClipPlan::kInfinityNorm || plan.double_backward) return false;
  if (has_sparse(plan) || has_complex(plan)) return false;
  if (any_parameter(plan, [](const ParameterPlan& p) { return p.layout == Layout::kSliced; })) {
    return false;
  }
  // Gradients that were exchanged are to be used, or given up, before the next are.
  for (const StepPlan& step : plan.steps) {
    for (std::size_t i = 0; i < step.passes.size(); ++i) {
      const PassPlan& pass = step.passes[i];
      const bool is_last = i + 1 == step.passes.size();
      if (pass.exchanges && !is_last && step.passes[i + 1].action != GradAction::kSetToNone) {
        return false;
      }
      // Nothing tells that the pass is to exchange what was assigned.
      if (pass.exchanges && !plan.is_weighted && pass.reaches_nothing != 0) return false;
    }
  }
  return true;
}

bool evaluates_before_backward(const Plan& plan) {
  return std::ranges::any_of(plan.steps, [](const StepPlan& step) {
    return std::ranges::any_of(step.passes, &PassPlan::evaluates);
  });
}

bool allows_fully_shard(const Plan& plan) {
  const OptionsPlan& options = plan.options;
  if (options.replicas == 0) {
    return !options.replicas_alternate && options.reshard_after_forward == 1 &&
           plan.units.empty() && !evaluates_before_backward(plan);
  }
  if (plan.ranks % options.replicas != 0 || plan.shards != 0) return false;
  const int number = options.reshard_after_forward;
  if (number > 1 && plan.ranks / options.replicas % number != 0) return false;
  // A rank gathers the one unit in each forward and backward that uses it, so all ranks do.
  if (!plan.units.empty() && !uses_units_alike(plan)) return false;
  if (plan.joins || plan.is_sharded || plan.double_backward || plan.has(OpKind::kBatchNorm)) {
    return false;
  }
  // DistributedDataParallel broadcasts buffers at other times.
  if (plan.has_buffer) return false;
  // They use parameters outside of forward.
  if (plan.penalizes_parameters || plan.penalizes_gradients) return false;
  if (has_sparse(plan) || has_complex(plan)) return false;
  if (any_parameter(plan, [](const ParameterPlan& p) { return p.is_ignored || p.is_delayed; })) {
    return false;
  }
  const OptionsPlan has_none{.init_sync = options.init_sync,
                             .gradient_norm = options.gradient_norm,
                             .replicas = options.replicas,
                             .replicas_alternate = options.replicas_alternate,
                             .reshard_after_forward = options.reshard_after_forward};
  if (options != has_none) return false;
  const unsigned all = (1U << plan.ranks) - 1;
  for (const StepPlan& step : plan.steps) {
    if (step.evaluates != 0 && step.evaluates != all) return false;
    for (std::size_t i = 0; i < step.passes.size(); ++i) {
      const PassPlan& pass = step.passes[i];
      if (pass.takes_gradients || pass.reaches_nothing != 0) return false;
      const bool is_last = i + 1 == step.passes.size();
      if (is_last ? !pass.exchanges : pass.exchanges && plan.is_weighted) return false;
      if (pass.action != (i == 0 ? GradAction::kSetToNone : GradAction::kKeep)) return false;
    }
  }
  return true;
}

bool allows_optimizer(const Plan& plan) {
  if (!plan.is_of_lockstep && plan.optimizer > kLastOfLibTorch) return false;
  // Norms of whole parameters, of which a rank has a piece.
  if (plan.optimizer == OptimizerPlan::kLamb && plan.options.replicas > 0) return false;
  if (plan.is_of_lockstep && (plan.is_sharded || has_sparse(plan) || has_complex(plan))) {
    return false;
  }
  if (has_sparse(plan) && plan.optimizer != OptimizerPlan::kSgd) return false;
  if (has_complex(plan) && plan.optimizer != OptimizerPlan::kSgd) return false;
  if (has_complex(plan) && plan.clip != ClipPlan::kNone) return false;
  return !has_sparse(plan) || plan.clip == ClipPlan::kNone || plan.clip == ClipPlan::kNorm;
}

// A weight of 0 counts nothing, also not what a rank's samples have to do with other ranks' losses.
bool counts_all_samples(const Plan& plan) {
  for (const StepPlan& step : plan.steps) {
    for (const PassPlan& pass : step.passes) {
      for (int rank = 0; rank < plan.ranks; ++rank) {
        if (pass.has_data[rank] && pass.weights[rank] == 0) return false;
      }
    }
  }
  return true;
}

bool has_empty_batches(const Plan& plan) {
  return std::ranges::any_of(plan.steps, [](const StepPlan& step) {
    return std::ranges::any_of(step.passes, has_empty_batch);
  });
}

// A plain pass begins its exchange with its first gradient. Where ranks wait for each other to
// begin, one that reaches more parameters than others before the backward pass of a SyncBatchNorm
// waits for ranks that wait for it in that layer.
bool waits_around_batch_norm(const Plan& plan) {
  if (plan.is_weighted || (plan.backend == Backend::kShm && !plan.joins)) return false;
  bool is_behind = false;
  for (const OpPlan& op : plan.ops) {
    is_behind = is_behind || op.kind == OpKind::kBatchNorm;
    const bool is_left_out =
        !op.left_out.empty() || (op.kind == OpKind::kWide && has_empty_batches(plan));
    if (is_behind && is_left_out) return true;
  }
  return false;
}

bool allows_graph(const Plan& plan) {
  if (plan.double_backward || plan.penalizes_gradients) {
    if (has_checkpoint(plan) || has_sparse(plan) || has_complex(plan) || has_16_bit(plan)) {
      return false;
    }
    if (plan.has(OpKind::kWide) || plan.has(OpKind::kBatchNorm) || plan.has(OpKind::kConvolution)) {
      return false;
    }
    if (plan.joins || reuses(plan)) return false;
    // LibTorch cannot take the derivative of an embedding's gradient without samples.
    if (plan.has(OpKind::kEmbedding) && has_empty_batches(plan)) return false;
  }
  if (plan.double_backward) {
    if (plan.is_weighted || plan.options.hook != HookPlan::kNone || plan.options.exchange_dtype) {
      return false;
    }
    if (plan.penalizes_parameters) return false;
    for (const ParameterPlan& parameter : plan.parameters) {
      if (parameter.hook_factor != 1 || parameter.is_ignored) return false;
    }
  }
  if (!plan.has(OpKind::kBatchNorm)) return !adds_in_place_to_views(plan);
  if (reuses(plan) || has_checkpoint(plan) || (plan.joins && !plan.syncs_batch_norm)) return false;
  if (!plan.syncs_batch_norm) return true;
  return !waits_around_batch_norm(plan) && (!plan.is_weighted || counts_all_samples(plan));
}

// A weight is given up with its gradients: where a pass has left none, nobody sees it, and where it
// left zeros, as any pass may, putting others in their place is taken for it.
bool hides_what_is_given_up(const StepPlan& step) {
  bool may_be_none = false;
  bool may_be_zero = false;
  for (const PassPlan& pass : step.passes) {
    if (may_be_none && gives_up(pass.action)) return true;
    if (may_be_zero && pass.action == GradAction::kClone) return true;
    if (gives_up(pass.action)) may_be_none = false;
    may_be_none = !pass.exchanges && (may_be_none || pass.reaches_nothing != 0);
    may_be_zero = !pass.exchanges;
  }
  return false;
}

bool allows_passes(const Plan& plan) {
  if (plan.steps.empty()) return false;
  for (std::size_t number = 0; number < plan.steps.size(); ++number) {
    const StepPlan& step = plan.steps[number];
    for (std::size_t i = 0; i < step.passes.size(); ++i) {
      const PassPlan& pass = step.passes[i];
      const unsigned all = (1U << plan.ranks) - 1;
      const bool is_same_everywhere = pass.reaches_nothing == 0 || pass.reaches_nothing == all;
      if (pass.exchanges && !plan.is_weighted && !is_same_everywhere) return false;
      const bool follows = i > 0 && step.passes[i - 1].reaches_nothing == 0 &&
                           !step.passes[i - 1].takes_gradients && !pass.takes_gradients;
      if (pass.reuses_graph && (!follows || pass.reaches_nothing != 0 || pass.forwards != 1))
        return false;
      if (pass.takes_gradients && (has_checkpoint(plan) || pass.exchanges || plan.joins))
        return false;
      if (pass.takes_gradients && (plan.double_backward || plan.has(OpKind::kBatchNorm)))
        return false;
      if (pass.reaches_nothing != 0 && (plan.double_backward || plan.has(OpKind::kBatchNorm)))
        return false;
      if (pass.reaches_nothing != 0 && plan.joins) return false;
      if (plan.is_weighted && pass.exchanges && group_of(plan, number, i).weight <= 0) return false;
    }
    // What is not exchanged is each rank's own: optimizers would drift apart.
    if (plan.is_weighted && hides_what_is_given_up(step)) return false;
    const PassPlan& last = step.passes.back();
    if (!last.exchanges || last.takes_gradients) return false;
    if (last.reaches_nothing == 0 || plan.is_weighted) continue;
    if (step.passes.size() > 1 || step.evaluates != 0) return false;
    if (plan.options.gradient_norm) return false;
  }
  return true;
}

bool allows_shards(const Plan& plan) {
  if (plan.shards == 0) return true;
  if (plan.joins || plan.is_sharded || plan.double_backward || plan.syncs_batch_norm) return false;
  if (has_sparse(plan)) return false;
  if (plan.clip != ClipPlan::kNone && plan.clip != ClipPlan::kValue) return false;
  if (any_parameter(plan, [](const ParameterPlan& p) { return p.is_ignored; })) return false;
  return std::ranges::all_of(plan.steps, [](const StepPlan& step) {
    return step.passes.size() == 1 && step.passes[0].action == GradAction::kSetToNone &&
           !step.passes[0].takes_gradients;
  });
}

}  // namespace

bool is_allowed(const Plan& plan) {
  return allows_shards(plan) && allows_passes(plan) && allows_graph(plan) && allows_options(plan) &&
         allows_one_copy(plan) && allows_fully_shard(plan) && allows_optimizer(plan) &&
         (has_one_bucket(plan) || adds_no_more_than_at_first(plan));
}

}  // namespace lockstep::differential
