#include "tests/fuzz/differential/cuts.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

namespace lockstep::differential {
namespace {

class Cuts {
 public:
  explicit Cuts(const Plan& plan) : plan_(plan), before_(describe(plan)) {}

  void add(const std::function<void(Plan&)>& change) {
    Plan plan = plan_;
    change(plan);
    if (describe(plan) != before_ && is_allowed(plan)) result_.push_back(std::move(plan));
  }
  std::vector<Plan> take() { return std::move(result_); }

 private:
  const Plan& plan_;
  std::string before_;
  std::vector<Plan> result_;
};

template <class Items>
void erase_at(Items& items, std::size_t index) {
  items.erase(items.begin() + static_cast<std::ptrdiff_t>(index));
}

void cut_steps(const Plan& plan, Cuts& cuts) {
  for (std::size_t i = plan.steps.size(); i-- > 0;) {
    cuts.add([i](Plan& p) {
      erase_at(p.steps, i);
      for (OpPlan& op : p.ops) {
        if (i < op.left_out.size()) erase_at(op.left_out, i);
      }
    });
    for (std::size_t j = 0; j < plan.steps[i].passes.size(); ++j) {
      if (plan.steps[i].passes.size() > 1)
        cuts.add([i, j](Plan& p) { erase_at(p.steps[i].passes, j); });
    }
  }
}

bool is_used(const Plan& plan, int parameter) {
  return std::any_of(plan.ops.begin(), plan.ops.end(), [&](const OpPlan& op) {
    return op.parameter == parameter || op.second == parameter || op.third == parameter;
  });
}

void cut_graph(const Plan& plan, Cuts& cuts) {
  for (std::size_t i = plan.units.size(); i-- > 0;) {
    cuts.add([i](Plan& p) { erase_at(p.units, i); });
  }
  for (std::size_t i = plan.ops.size(); i-- > 1;) {
    cuts.add([i](Plan& p) {
      erase_at(p.ops, i);
      for (UnitPlan& unit : p.units) {
        if (unit.first > static_cast<int>(i)) --unit.first;
        if (unit.last >= static_cast<int>(i)) --unit.last;
      }
      std::erase_if(p.units, [](const UnitPlan& unit) { return unit.last < unit.first; });
    });
  }
  for (std::size_t i = plan.parameters.size(); i-- > 2;) {
    if (is_used(plan, static_cast<int>(i))) continue;
    cuts.add([i](Plan& p) {
      erase_at(p.parameters, i);
      for (OpPlan& op : p.ops) {
        for (int* const index : {&op.parameter, &op.second, &op.third}) {
          if (*index > static_cast<int>(i)) --*index;
        }
      }
    });
  }
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    cuts.add([i](Plan& p) { p.ops[i].left_out.clear(); });
    cuts.add([i](Plan& p) { p.ops[i].is_checkpointed = false; });
    cuts.add([i](Plan& p) { p.ops[i].uses = p.ops[i].later_uses = 1; });
    cuts.add([i](Plan& p) { p.ops[i].adds_input = false; });
    cuts.add([i](Plan& p) { p.ops[i].is_side = false; });
    cuts.add([i](Plan& p) { p.ops[i].delays = 0; });
    cuts.add([i](Plan& p) { p.ops[i].sparse = false; });
    if (plan.ops[i].kind == OpKind::kLinear) cuts.add([i](Plan& p) { p.ops[i].second = -1; });
    cuts.add([i](Plan& p) { p.ops[i].third = -1; });
  }
  for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
    cuts.add([i](Plan& p) {
      const ParameterPlan& old = p.parameters[i];
      const bool is_complex = c10::isComplexType(old.dtype);
      p.parameters[i] = {.sizes = old.sizes, .dtype = is_complex ? old.dtype : p.compute};
    });
  }
  cuts.add([](Plan& p) { p.penalizes_gradients = false; });
  cuts.add([](Plan& p) { p.penalizes_parameters = false; });
  cuts.add([](Plan& p) { p.double_backward = false; });
  cuts.add([](Plan& p) { p.syncs_batch_norm = false; });
}

void cut_options(Cuts& cuts) {
  cuts.add([](Plan& p) { p.options = {}; });
  cuts.add([](Plan& p) { p.options.caps_mb.clear(); });
  cuts.add([](Plan& p) { p.options.init_sync = true; });
  cuts.add([](Plan& p) { p.options.forward_sync_buffers = true; });
  cuts.add([](Plan& p) { p.options.find_unused_parameters = false; });
  cuts.add([](Plan& p) { p.options.static_graph = false; });
  cuts.add([](Plan& p) { p.options.gradient_as_bucket_view = true; });
  cuts.add([](Plan& p) { p.options.gradient_norm = false; });
  cuts.add([](Plan& p) { p.options.measure_exchange = false; });
  cuts.add([](Plan& p) { p.options.step_timer = false; });
  cuts.add([](Plan& p) { p.options.check_replicas_every = 0; });
  cuts.add([](Plan& p) { p.options.exchange_dtype.reset(); });
  cuts.add([](Plan& p) { p.options.hook = HookPlan::kNone; });
  cuts.add([](Plan& p) { p.options.one_copy_per_machine = false; });
  cuts.add([](Plan& p) { p.options.replicas = 0; });
  cuts.add([](Plan& p) { p.options.replicas = std::min(p.options.replicas, 1); });
  cuts.add([](Plan& p) { p.options.replicas_alternate = false; });
  cuts.add([](Plan& p) { p.options.reshard_after_forward = 1; });
}

void cut_program(const Plan& plan, Cuts& cuts) {
  cuts.add([](Plan& p) {
    p.joins = false;
    for (StepPlan& step : p.steps) {
      for (PassPlan& pass : step.passes) pass.has_data.assign(p.ranks, true);
    }
  });
  cuts.add([](Plan& p) {
    p.is_weighted = false;
    for (StepPlan& step : p.steps) {
      for (PassPlan& pass : step.passes) pass.weights.clear();
    }
  });
  cuts.add([](Plan& p) { p.optimizer = OptimizerPlan::kSgd; });
  cuts.add([](Plan& p) { p.is_sharded = false; });
  cuts.add([](Plan& p) { p.is_of_lockstep = false; });
  cuts.add([](Plan& p) { p.clip = ClipPlan::kNone; });
  cuts.add([](Plan& p) { p.threads = 1; });
  cuts.add([](Plan& p) {
    p.delay_us = 0;
    for (OpPlan& op : p.ops) op.delays = 0;
    for (StepPlan& step : p.steps) {
      for (PassPlan& pass : step.passes) pass.delays = 0;
    }
  });
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    cuts.add([i](Plan& p) { p.steps[i].evaluates = 0; });
    for (std::size_t j = 0; j < plan.steps[i].passes.size(); ++j) {
      const auto change = [&cuts, i, j](const std::function<void(PassPlan&)>& make) {
        cuts.add([&](Plan& p) { make(p.steps[i].passes[j]); });
      };
      change([j](PassPlan& pass) {
        pass.action = j == 0 ? GradAction::kSetToNone : GradAction::kKeep;
      });
      change([](PassPlan& pass) { pass.forwards = 1; });
      change([](PassPlan& pass) { pass.reuses_graph = false; });
      change([](PassPlan& pass) { pass.reaches_nothing = 0; });
      change([](PassPlan& pass) { pass.takes_gradients = false; });
      change([](PassPlan& pass) { pass.guards_forward = true; });
      change([](PassPlan& pass) { pass.evaluates = false; });
      change([](PassPlan& pass) { pass.delays = 0; });
      change([](PassPlan& pass) {
        for (std::size_t rank = 0; rank < pass.samples.size(); ++rank) {
          if (pass.has_data[rank]) pass.samples[rank] = 2;
        }
      });
    }
  }
}

}  // namespace

std::vector<Plan> cuts(const Plan& plan) {
  Cuts result(plan);
  cut_steps(plan, result);
  cut_graph(plan, result);
  cut_options(result);
  cut_program(plan, result);
  return result.take();
}

}  // namespace lockstep::differential
