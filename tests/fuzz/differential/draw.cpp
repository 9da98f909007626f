#include "tests/fuzz/differential/draw.h"

#include <algorithm>
#include <utility>

#include "tests/fuzz/differential/draw_graph.h"
#include "tests/fuzz/differential/random.h"

namespace lockstep::differential {
namespace {

void draw_options(Random& random, Plan& plan) {
  OptionsPlan& options = plan.options;
  switch (random.between(0, 4)) {
    case 0:
      options.caps_mb = {random.pick({1e-6, 5e-5, 1e-4, 2.5e-4})};
      break;
    case 1:
      options.caps_mb = {random.pick({1e-6, 1e-4}), random.pick({1e-4, 25.0})};
      if (random.chance(50)) options.caps_mb.push_back(random.pick({4e-5, 0.3}));
      options.caps_as_list = true;
      break;
    default:
      break;
  }
  options.init_sync = random.chance(75);
  options.forward_sync_buffers = random.chance(75);
  options.find_unused_parameters = random.chance(25);
  options.static_graph = random.chance(20);
  options.gradient_as_bucket_view = random.chance(65);
  options.gradient_norm = random.chance(25);
  options.measure_exchange = random.chance(15);
  options.step_timer = random.chance(10);
  if (random.chance(15)) options.check_replicas_every = random.between(1, 2);
  if (random.chance(15)) {
    options.exchange_dtype = random.pick({at::kHalf, at::kBFloat16});
  } else if (random.chance(30)) {
    options.hook = static_cast<HookPlan>(random.between(1, 8));
    options.local_sgd_from = random.between(0, 2);
  }
}

void draw_optimizer(Random& random, Plan& plan) {
  plan.optimizer =
      random.chance(40) ? OptimizerPlan::kSgd : static_cast<OptimizerPlan>(random.between(1, 5));
  plan.is_sharded = random.chance(25);
  if (random.chance(25)) plan.clip = static_cast<ClipPlan>(random.between(1, 4));
}

GradAction draw_first_action(Random& random, const Plan& plan) {
  if (plan.is_weighted) {
    return random.pick({GradAction::kSetToNone, GradAction::kSetToNone, GradAction::kZeroInPlace,
                        GradAction::kAssignZeros});
  }
  return random.pick({GradAction::kSetToNone, GradAction::kSetToNone, GradAction::kSetToNone,
                      GradAction::kZeroInPlace, GradAction::kZeroInPlace, GradAction::kKeep,
                      GradAction::kClone, GradAction::kAssignZeros, GradAction::kAssignNines});
}

void draw_samples(Random& random, const Plan& plan, PassPlan& pass) {
  const bool normalizes = plan.has(OpKind::kBatchNorm);
  for (int rank = 0; rank < plan.ranks; ++rank) {
    int samples = random.pick({1, 2, 2, 3, 4, 7});
    if (random.chance(4)) samples = 0;
    if (normalizes && samples < 2) samples = 2;
    pass.samples.push_back(samples);
    pass.has_data.push_back(true);
    pass.weights.push_back(random.between(0, 3));
  }
}

PassPlan draw_pass(Random& random, const Plan& plan) {
  PassPlan pass;
  draw_samples(random, plan, pass);
  pass.guards_forward = random.chance(50);
  if (random.chance(12)) pass.forwards = 2;
  pass.delays = plan.delay_us > 0 ? random.next() % (1U << plan.ranks) : 0;
  return pass;
}

void draw_step(Random& random, const Plan& plan, StepPlan& step) {
  const int exchanges = !plan.is_weighted && random.chance(12) ? 2 : 1;
  for (int exchange = 0; exchange < exchanges; ++exchange) {
    const int passes = random.chance(60) ? 1 : random.between(2, 3);
    for (int i = 0; i < passes; ++i) {
      PassPlan pass = draw_pass(random, plan);
      const bool is_first = i == 0 && exchange == 0;
      pass.exchanges = i + 1 == passes;
      if (is_first) {
        pass.action = draw_first_action(random, plan);
      } else if (random.chance(20)) {
        pass.action = plan.is_weighted
                          ? random.pick({GradAction::kClone, GradAction::kSetToNone})
                          : random.pick({GradAction::kClone, GradAction::kClone,
                                         GradAction::kSetToNone, GradAction::kZeroInPlace});
      }
      const unsigned all = (1U << plan.ranks) - 1;
      if (random.chance(4)) {
        const bool may_differ = plan.is_weighted || !pass.exchanges;
        pass.reaches_nothing = may_differ ? static_cast<unsigned>(random.next()) & all : all;
      }
      if (!is_first && random.chance(15)) pass.reuses_graph = true;
      if (!pass.reuses_graph && random.chance(5)) pass.takes_gradients = true;
      if (pass.takes_gradients && pass.exchanges) {
        step.passes.push_back(pass);
        pass.takes_gradients = false;
        pass.action = GradAction::kKeep;
        step.passes.back().exchanges = false;
      }
      step.passes.push_back(std::move(pass));
    }
  }
  if (random.chance(3)) step.passes.back().exchanges = false;
  if (random.chance(10)) step.evaluates = random.next() % (1U << plan.ranks);
}

// Each rank goes through its own number of batches, some at a time.
void draw_joined_steps(Random& random, Plan& plan) {
  plan.accumulation_steps = random.pick({1, 1, 2, 3});
  std::vector<int> left;
  int most = 0;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    left.push_back(random.between(0, 4));
    most = std::max(most, left.back());
  }
  if (most == 0) left[0] = 2;
  while (true) {
    std::vector<int> now;
    int passes = 0;
    for (int& rest : left) {
      now.push_back(std::min(rest, plan.accumulation_steps));
      rest -= now.back();
      passes = std::max(passes, now.back());
    }
    if (passes == 0) return;
    StepPlan step;
    for (int i = 0; i < passes; ++i) {
      PassPlan pass = draw_pass(random, plan);
      pass.forwards = 1;
      pass.reaches_nothing = 0;
      pass.guards_forward = true;
      pass.exchanges = i + 1 == passes;
      if (i == 0) pass.action = random.pick({GradAction::kSetToNone, GradAction::kZeroInPlace});
      for (int rank = 0; rank < plan.ranks; ++rank) {
        pass.has_data[rank] = i < now[rank];
        if (!pass.has_data[rank]) pass.samples[rank] = 0;
        if (!pass.has_data[rank]) pass.weights[rank] = 0;
      }
      step.passes.push_back(std::move(pass));
    }
    plan.steps.push_back(std::move(step));
  }
}

// Σ weights becomes a power of two, by which small integers can be divided; now and then not.
void round_weights(Random& random, Plan& plan) {
  for (int step = 0; step < static_cast<int>(plan.steps.size()); ++step) {
    auto& passes = plan.steps[step].passes;
    for (int pass = 0; pass < static_cast<int>(passes.size()); ++pass) {
      if (!plan.is_weighted) passes[pass].weights.clear();
      const bool ends = passes[pass].exchanges && !passes[pass].takes_gradients;
      if (!plan.is_weighted || !ends || random.chance(5)) continue;
      const double weight = group_of(plan, step, pass).weight;
      double rounded = 1;
      while (rounded < weight) rounded *= 2;
      for (int rank = 0; rank < plan.ranks; ++rank) {
        if (!passes[pass].has_data[rank]) continue;
        passes[pass].weights[rank] += rounded - weight;
        break;
      }
    }
  }
}

void draw_steps(Random& random, Plan& plan) {
  if (plan.joins) {
    draw_joined_steps(random, plan);
  } else {
    plan.steps.resize(random.between(2, 4));
    for (StepPlan& step : plan.steps) draw_step(random, plan, step);
  }
  round_weights(random, plan);
}

// Without what it refuses.
void draw_one_copy(Random& random, Plan& plan) {
  if (plan.ranks == 1 || !random.chance(40)) return;
  Plan changed = plan;
  changed.backend = Backend::kShm;
  changed.options.one_copy_per_machine = true;
  changed.options.hook = HookPlan::kNone;
  changed.options.exchange_dtype.reset();
  changed.options.measure_exchange = false;
  changed.is_sharded = false;
  changed.is_of_lockstep = random.chance(60);
  if (changed.clip == ClipPlan::kInfinityNorm) changed.clip = ClipPlan::kNorm;
  for (ParameterPlan& parameter : changed.parameters) {
    if (parameter.layout == Layout::kSliced) parameter.layout = Layout::kContiguous;
  }
  if (plan.ranks > 2 && random.chance(40)) changed.backend = Backend::kHierarchical;
  if (is_allowed(changed)) plan = std::move(changed);
}

void draw_optimizer_of_lockstep(Random& random, Plan& plan) {
  if (!plan.is_of_lockstep || !random.chance(60)) return;
  Plan changed = plan;
  changed.optimizer = static_cast<OptimizerPlan>(
      random.between(static_cast<int>(kLastOfLibTorch) + 1, static_cast<int>(kLastOptimizer)));
  if (is_allowed(changed)) plan = std::move(changed);
}

// Without what it refuses, in one replica or in several.
Plan fully_sharded(Random& random, const Plan& plan) {
  Plan changed = plan;
  const bool is_even = plan.ranks % 2 == 0;
  changed.options = {.init_sync = plan.options.init_sync,
                     .gradient_norm = plan.options.gradient_norm,
                     .replicas = is_even && random.chance(50) ? 2 : 1};
  changed.options.replicas_alternate = changed.options.replicas == 2 && random.chance(50);
  changed.joins = changed.is_sharded = changed.double_backward = false;
  changed.penalizes_parameters = changed.penalizes_gradients = false;
  changed.is_of_lockstep = random.chance(50);
  for (ParameterPlan& parameter : changed.parameters) {
    parameter.is_ignored = parameter.is_delayed = false;
  }
  for (OpPlan& op : changed.ops) op.sparse = false;
  const unsigned all = (1U << plan.ranks) - 1;
  for (StepPlan& step : changed.steps) {
    if (step.evaluates != 0) step.evaluates = all;
    for (std::size_t i = 0; i < step.passes.size(); ++i) {
      step.passes[i].exchanges = i + 1 == step.passes.size();
      step.passes[i].action = i == 0 ? GradAction::kSetToNone : GradAction::kKeep;
      step.passes[i].takes_gradients = false;
      step.passes[i].reaches_nothing = 0;
    }
  }
  return changed;
}

void draw_fully_shard(Random& random, Plan& plan) {
  if (!random.chance(33)) return;
  Plan changed = fully_sharded(random, plan);
  if (is_allowed(changed)) plan = std::move(changed);
}

// Within the operators `first` to `last`, not all of them.
void draw_units(Random& random, int first, int last, std::vector<UnitPlan>& units) {
  for (int begin = first; begin <= last; ++begin) {
    if (random.chance(35)) continue;
    const UnitPlan unit{.first = begin, .last = random.between(begin, last)};
    if (unit.first == first && unit.last == last) continue;
    units.push_back(unit);
    draw_units(random, unit.first, unit.last, units);
    begin = unit.last;
  }
}

// Some ranks, other ones in each step.
std::vector<unsigned> draw_ranks(Random& random, const Plan& plan) {
  const unsigned all = (1U << plan.ranks) - 1;
  std::vector<unsigned> ranks;
  for (std::size_t step = 0; step < plan.steps.size(); ++step) {
    ranks.push_back(static_cast<unsigned>(random.next()) & all);
  }
  return ranks;
}

// A unit within another, and operators with the outer one's parameters that some ranks leave out.
// One is behind the inner unit: ranks without it come to that first in backward. One is amid it.
void draw_unit_within_another(Random& random, Plan& plan) {
  const int last = static_cast<int>(plan.ops.size()) - 1;
  UnitPlan outer{.first = random.between(0, 1), .last = random.between(last - 1, last)};
  if (outer.last - outer.first < 2) outer.first = 0;  // The inner unit has an operator.
  plan.units = {outer, {.first = outer.first + 1, .last = outer.last - 1}};
  draw_units(random, outer.first + 1, outer.last - 1, plan.units);
  plan.ops[outer.last].left_out = draw_ranks(random, plan);
  if (outer.last - outer.first < 4) return;
  OpPlan& amid = plan.ops[random.between(outer.first + 2, outer.last - 2)];
  amid = plan.ops[outer.last];
  amid.left_out = draw_ranks(random, plan);
}

// More than the plan of a single unit has.
void put_in_units(Random& random, Plan& plan) {
  // Ranks seldom use units alike in such a plan, so it is seldom kept.
  if (plan.ops.size() >= 4 && random.chance(80)) {
    draw_unit_within_another(random, plan);
  } else {
    draw_units(random, 0, static_cast<int>(plan.ops.size()) - 1, plan.units);
  }
  plan.options.reshard_after_forward = random.pick({0, 1, 1, 2});
  for (StepPlan& step : plan.steps) {
    for (PassPlan& pass : step.passes) {
      pass.evaluates = random.chance(25);
      if (!plan.is_weighted && random.chance(30)) pass.exchanges = true;
    }
  }
}

Plan draw_once(Random& random, std::uint64_t seed, int ranks) {
  Plan plan{.seed = seed, .ranks = ranks};
  plan.backend = random.chance(55)   ? Backend::kShm
                 : random.chance(65) ? Backend::kGloo
                                     : Backend::kHierarchical;
  plan.threads = random.chance(8) ? 2 : 1;
  plan.compute = random.chance(25) ? at::kDouble : at::kFloat;
  plan.is_weighted = random.chance(25);
  plan.joins = random.chance(15);
  plan.double_backward = random.chance(5);
  plan.penalizes_gradients = random.chance(6);
  plan.penalizes_parameters = random.chance(12);
  if (random.chance(25)) plan.delay_us = random.pick({100, 300, 1000});
  draw_options(random, plan);
  draw_optimizer(random, plan);
  draw_graph(random, plan);
  draw_steps(random, plan);
  draw_absences(random, plan);
  return plan;
}

// One pass a step, without what ranks do for each other.
void put_in_shards(Random& random, Plan& plan) {
  plan.shards = plan.ranks;
  plan.threads = 1;
  plan.is_sharded = plan.double_backward = plan.syncs_batch_norm = false;
  plan.is_of_lockstep = random.chance(50);
  plan.clip = random.chance(25) ? ClipPlan::kValue : ClipPlan::kNone;
  plan.delay_us = 0;
  plan.options = {.gradient_as_bucket_view = plan.options.gradient_as_bucket_view};
  for (ParameterPlan& parameter : plan.parameters) {
    parameter.is_ignored = parameter.is_delayed = false;
  }
  for (OpPlan& op : plan.ops) {
    op.sparse = false;
    op.delays = 0;
  }
  for (StepPlan& step : plan.steps) {
    PassPlan pass = step.passes.back();
    pass.exchanges = true;
    pass.reuses_graph = pass.takes_gradients = false;
    pass.action = GradAction::kSetToNone;
    pass.delays = 0;
    step = {.passes = {std::move(pass)}};
  }
  if (!random.chance(30)) return;
  plan.backend = Backend::kShm;
  plan.options.one_copy_per_machine = true;
  for (ParameterPlan& parameter : plan.parameters) {
    if (parameter.layout == Layout::kSliced) parameter.layout = Layout::kContiguous;
  }
}

}  // namespace

Plan draw_in_shards(std::uint64_t seed) {
  constexpr int kMostShards = 9;
  Random random(~seed ^ 0x5ad5);
  while (true) {
    Plan plan = draw_once(random, seed, random.between(1, kMostShards));
    if (plan.joins) continue;
    put_in_shards(random, plan);
    draw_optimizer_of_lockstep(random, plan);
    if (is_allowed(plan)) return plan;
  }
}

Plan draw_in_units(std::uint64_t seed, int ranks) {
  Random random((~seed ^ 0x0417) * 4 + static_cast<std::uint64_t>(ranks));
  while (true) {
    Plan plan = fully_sharded(random, draw_once(random, seed, ranks));
    put_in_units(random, plan);
    draw_optimizer_of_lockstep(random, plan);
    if (!plan.units.empty() && is_allowed(plan)) return plan;
  }
}

Plan draw(std::uint64_t seed, int ranks) {
  Random random(seed * 4 + static_cast<std::uint64_t>(ranks));
  while (true) {
    Plan plan = draw_once(random, seed, ranks);
    if (!is_allowed(plan)) continue;
    // Numbers of its own: seeds stay what they were without it.
    Random more(~seed);
    draw_second_complex(more, plan);
    Random others(~seed ^ 0x5eed);
    draw_one_copy(others, plan);
    // By this none of the seeds in seeds.txt is another plan.
    Random shards(~seed ^ 0xfba9);
    draw_fully_shard(shards, plan);
    Random optimizers(~seed ^ 0x0b71);
    draw_optimizer_of_lockstep(optimizers, plan);
    return plan;
  }
}

}  // namespace lockstep::differential
