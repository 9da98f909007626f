#include "tests/fuzz/differential/plan.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace lockstep::differential {
namespace {

constexpr const char* kOpNames[] = {"linear", "matmul",      "bias",      "multiply", "scalar",
                                    "sum",    "convolution", "embedding", "complex",  "wide",
                                    "buffer", "batch_norm",  "square",    "product"};
constexpr const char* kViews[] = {"plain", "unsqueeze", "view", "reshape", "squeeze", "expand"};
constexpr const char* kActions[] = {"keep",  "set to none",  "zero in place",
                                    "clone", "assign zeros", "assign nines"};
constexpr const char* kLayouts[] = {"contiguous", "transposed", "channels last", "sliced"};
constexpr const char* kHooks[] = {"none", "all_reduce", "halve",     "half",    "bfloat16",
                                  "noop", "local_sgd",  "power_sgd", "quantize"};
constexpr const char* kOptimizers[] = {
    "sgd",   "momentum", "adam",   "adamw",    "rmsprop",          "adagrad",
    "nadam", "radam",    "adamax", "adadelta", "centered rmsprop", "amsgrad",
    "lion",  "lamb"};
constexpr const char* kClips[] = {"none", "norm", "known norm", "infinity norm", "value"};
constexpr const char* kBackends[] = {"shm", "gloo", "hierarchical"};

template <class Values>
std::string list(const Values& values) {
  std::ostringstream text;
  text << "[";
  for (std::size_t i = 0; i < values.size(); ++i) text << (i > 0 ? "," : "") << values[i];
  text << "]";
  return text.str();
}

void describe_op(std::ostream& text, const OpPlan& op) {
  text << kOpNames[static_cast<int>(op.kind)];
  for (const int parameter : {op.parameter, op.second, op.third}) {
    if (parameter >= 0) text << " p" << parameter;
  }
  if (op.view != View::kPlain) text << " by " << kViews[static_cast<int>(op.view)];
  if (op.sparse) text << " sparse";
  if (op.adds_input) text << " residual";
  if (op.is_side) text << " side";
  if (op.is_checkpointed) text << " checkpointed";
  if (op.uses != 1 || op.later_uses != 1) text << " uses " << op.uses << " then " << op.later_uses;
  if (!op.left_out.empty()) text << " left out " << list(op.left_out);
  if (op.delays != 0) text << " delays " << op.delays;
}

void describe_options(std::ostream& text, const OptionsPlan& options) {
  text << "options:";
  if (!options.caps_mb.empty()) {
    text << " caps " << list(options.caps_mb) << (options.caps_as_list ? " as list" : "");
  }
  if (!options.init_sync) text << " no init_sync";
  if (!options.forward_sync_buffers) text << " no forward_sync_buffers";
  if (options.find_unused_parameters) text << " find_unused_parameters";
  if (options.static_graph) text << " static_graph";
  if (!options.gradient_as_bucket_view) text << " no gradient_as_bucket_view";
  if (options.gradient_norm) text << " gradient_norm";
  if (options.measure_exchange) text << " measure_exchange";
  if (options.step_timer) text << " step_timer";
  if (options.check_replicas_every > 0)
    text << " check_replicas_every " << options.check_replicas_every;
  if (options.exchange_dtype) text << " exchange_dtype " << c10::toString(*options.exchange_dtype);
  if (options.hook != HookPlan::kNone) text << " hook " << kHooks[static_cast<int>(options.hook)];
  if (options.hook == HookPlan::kLocalSgd) text << " from " << options.local_sgd_from;
  if (options.one_copy_per_machine) text << " one_copy_per_machine";
  if (options.replicas > 0) text << " fully sharded, replicas " << options.replicas;
  if (options.replicas_alternate) text << ", which alternate";
  if (options.reshard_after_forward != 1) text << ", reshard " << options.reshard_after_forward;
  text << "\n";
}

void describe_pass(std::ostream& text, const PassPlan& pass) {
  text << "  pass: " << kActions[static_cast<int>(pass.action)] << "; "
       << (pass.exchanges        ? "exchanges"
           : pass.guards_forward ? "no_sync"
                                 : "no_sync in backward");
  if (pass.reuses_graph) text << ", same graph";
  if (pass.forwards != 1) text << ", forwards " << pass.forwards;
  if (pass.reaches_nothing != 0) text << ", reaches nothing on " << pass.reaches_nothing;
  if (pass.takes_gradients) text << ", by autograd::grad";
  if (pass.evaluates) text << ", evaluates before";
  text << ", samples " << list(pass.samples);
  if (!pass.weights.empty()) text << ", weights " << list(pass.weights);
  if (pass.delays != 0) text << ", delays " << pass.delays;
  text << "\n";
}

}  // namespace

bool Plan::has(OpKind kind) const {
  return std::any_of(ops.begin(), ops.end(), [&](const OpPlan& op) { return op.kind == kind; });
}

std::string describe(const Plan& plan) {
  std::ostringstream text;
  text << "seed " << plan.seed << ": " << plan.ranks << " ranks over "
       << kBackends[static_cast<int>(plan.backend)] << ", threads " << plan.threads << ", "
       << c10::toString(plan.compute) << ", " << kOptimizers[static_cast<int>(plan.optimizer)]
       << (plan.is_sharded ? " sharded" : "") << (plan.is_of_lockstep ? " of Lockstep" : "");
  if (plan.clip != ClipPlan::kNone) text << ", clip " << kClips[static_cast<int>(plan.clip)];
  if (plan.syncs_batch_norm) text << ", SyncBatchNorm";
  if (plan.penalizes_parameters) text << ", penalizes parameters";
  if (plan.penalizes_gradients) text << ", penalizes gradients";
  if (plan.double_backward) text << ", double backward";
  if (plan.is_weighted) text << ", weighted";
  if (plan.joins) text << ", join of " << plan.accumulation_steps;
  if (plan.shards > 0) text << ", in logical shards";
  if (plan.delay_us > 0) text << ", delays of " << plan.delay_us << " us";
  text << "\n";
  describe_options(text, plan.options);
  for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
    const ParameterPlan& parameter = plan.parameters[i];
    text << "p" << i << " " << list(parameter.sizes) << " " << c10::toString(parameter.dtype);
    if (parameter.layout != Layout::kContiguous) {
      text << " " << kLayouts[static_cast<int>(parameter.layout)];
    }
    if (!parameter.is_trained) text << " frozen";
    if (parameter.is_ignored) text << " ignored";
    if (parameter.is_delayed) text << " delayed";
    if (parameter.hook_factor != 1) text << " hook * " << parameter.hook_factor;
    text << "\n";
  }
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    text << "op " << i << ": ";
    describe_op(text, plan.ops[i]);
    text << "\n";
  }
  for (const UnitPlan& unit : plan.units) text << "unit " << unit.first << "-" << unit.last << "\n";
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    text << "step " << i;
    if (plan.steps[i].evaluates != 0) text << ", evaluates " << plan.steps[i].evaluates;
    text << "\n";
    for (const PassPlan& pass : plan.steps[i].passes) describe_pass(text, pass);
  }
  return text.str();
}

bool has_empty_batch(const PassPlan& pass) {
  return std::find(pass.samples.begin(), pass.samples.end(), 0) != pass.samples.end();
}

bool gives_up(GradAction action) {
  return action == GradAction::kSetToNone || action == GradAction::kZeroInPlace ||
         action == GradAction::kAssignZeros;
}

ExchangeGroup group_of(const Plan& plan, int step, int pass) {
  const auto& passes = plan.steps[step].passes;
  const int count = static_cast<int>(passes.size());
  int first = pass;
  while (first > 0 && !gives_up(passes[first].action) && !passes[first - 1].exchanges) --first;
  int last = pass;
  while (last + 1 < count && !passes[last].exchanges && !gives_up(passes[last + 1].action)) ++last;
  ExchangeGroup group;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    bool has_data = !plan.joins;
    for (int i = first; i <= last; ++i) {
      if (passes[i].takes_gradients) continue;
      if (plan.is_weighted) group.weight += passes[i].weights[rank];
      if (plan.joins && passes[i].has_data[rank]) has_data = true;
    }
    group.ranks_with_data += has_data ? 1 : 0;
  }
  return group;
}

double multiplier(const Plan& plan, int step, int pass) {
  // Twice, as gradients that are kept are averaged again.
  double factor = plan.ranks == 3 || (plan.joins && plan.ranks > 2) ? 9 : 1;
  if (plan.is_weighted) {
    const double weight = group_of(plan, step, pass).weight;
    if (weight > 0) factor *= weight;
  }
  return factor;
}

}  // namespace lockstep::differential
