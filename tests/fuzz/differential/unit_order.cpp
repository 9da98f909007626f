// Which units a training run comes to in which order, by the documented rules: where ranks differ
// in it, Lockstep reports an error.
#include <algorithm>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "tests/fuzz/differential/plan.h"

namespace lockstep::differential {
namespace {

using Units = std::set<int>;

bool holds(const UnitPlan& unit, int op) {
  return unit.first <= op && op <= unit.last;
}

bool is_within(const Plan& plan, int inner, int outer) {
  if (outer < 0 || inner == outer) return true;
  return inner >= 0 && outer < inner && holds(plan.units[outer], plan.units[inner].first);
}

bool uses(const OpPlan& op, int parameter) {
  return op.parameter == parameter || op.second == parameter || op.third == parameter;
}

std::vector<int> parameters_of(const OpPlan& op) {
  std::vector<int> parameters;
  for (const int parameter : {op.parameter, op.second, op.third}) {
    if (parameter >= 0) parameters.push_back(parameter);
  }
  return parameters;
}

// Whether the gradient of an activation is computed from the parameter's own values.
bool needs_values(const Plan& plan, const OpPlan& op, int parameter) {
  if (op.is_checkpointed) return true;
  if (parameter != op.parameter || plan.parameters[parameter].dtype != plan.compute) return false;
  switch (op.kind) {
    case OpKind::kLinear:
    case OpKind::kMatmul:
    case OpKind::kMultiply:
    case OpKind::kScalar:
    case OpKind::kConvolution:
    case OpKind::kWide:
      return true;
    default:
      return false;
  }
}

/// Units that a rank gathers, in an order that is not known here, or one that it gives up.
struct Change {
  Units units;
  bool is_gathered = true;

  bool operator==(const Change&) const = default;
};

/// What a rank gathers, and what it gives up for it.
class UnitOrder {
 public:
  explicit UnitOrder(const Plan& plan) : plan_(plan) {}

  /// Before `units` are used: all that are neither within them nor around them.
  void give_up_others(const Units& units) {
    std::erase_if(gathered_, [&](int other) {
      const bool is_kept = std::ranges::any_of(units, [&](int unit) {
        return is_within(plan_, other, unit) || is_within(plan_, unit, other);
      });
      if (!is_kept) changes_.push_back({.units = {other}, .is_gathered = false});
      return !is_kept;
    });
  }

  void gather(const Units& units) {
    Units begun;
    std::ranges::set_difference(units, gathered_, std::inserter(begun, begun.end()));
    gathered_.insert(begun.begin(), begun.end());
    if (!begun.empty()) changes_.push_back({.units = std::move(begun)});
  }

  const std::vector<Change>& changes() const { return changes_; }

 private:
  const Plan& plan_;
  Units gathered_;
  std::vector<Change> changes_;
};

/// One rank's pass, which has computed its graph.
class RankPass {
 public:
  RankPass(const Plan& plan, int step, const PassPlan& pass, int rank) : plan_(plan) {
    const bool is_empty = pass.samples[rank] == 0;
    for (int op = 0; op < static_cast<int>(plan.ops.size()); ++op) {
      if (plan.is_left_out(plan.ops[op], step, rank)) continue;
      if (plan.ops[op].kind == OpKind::kWide && is_empty) continue;
      ops_.push_back(op);
    }
  }

  std::vector<Change> forward() {
    UnitOrder order(plan_);
    for (const int op : ops_) {
      Units units;
      for (const int parameter : parameters_of(plan_.ops[op])) {
        units.insert(unit_of_parameter(plan_, parameter));
      }
      if (units.empty()) continue;
      order.give_up_others(units);
      order.gather(units);
      used_.insert(units.begin(), units.end());
    }
    return order.changes();
  }

  // The last operators first, of the last forward pass first.
  std::vector<Change> backward(int forwards) const {
    UnitOrder order(plan_);
    for (int number = forwards; number-- > 0;) {
      for (auto op = ops_.rbegin(); op != ops_.rend(); ++op) {
        Units units;
        for (const int parameter : parameters_of(plan_.ops[*op])) {
          const bool comes = needs_values(plan_, plan_.ops[*op], parameter) ||
                             (number == 0 && completes_gradient(*op, parameter));
          if (!comes) continue;
          units.insert(unit_of_parameter(plan_, parameter));
        }
        if (!units.empty()) use_in_backward(order, units);
      }
    }
    return order.changes();
  }

 private:
  // With the units around them, outer ones first.
  void use_in_backward(UnitOrder& order, const Units& units) const {
    Units around;
    for (const int unit : units) {
      for (const int outer : used_) {
        if (is_within(plan_, unit, outer)) around.insert(outer);
      }
    }
    order.give_up_others(units);
    if (units.size() > 1) return order.gather(around);
    for (const int unit : around) order.gather({unit});
  }

  // Autograd accumulates it when all operators have added to it.
  bool completes_gradient(int op, int parameter) const {
    if (!plan_.parameters[parameter].is_trained) return false;
    const auto first = std::ranges::find_if(ops_, [&](int other) {
      return uses(plan_.ops[other], parameter) && !plan_.ops[other].is_checkpointed;
    });
    return first != ops_.end() && *first == op;
  }

  const Plan& plan_;
  std::vector<int> ops_;
  Units used_;
};

}  // namespace

int unit_of_op(const Plan& plan, int op) {
  int innermost = -1;
  for (int i = 0; i < static_cast<int>(plan.units.size()); ++i) {
    if (holds(plan.units[i], op)) innermost = i;
  }
  return innermost;
}

int unit_of_parameter(const Plan& plan, int parameter) {
  int innermost = -1;
  for (int i = 0; i < static_cast<int>(plan.units.size()); ++i) {
    bool is_used = false;
    bool holds_all = true;
    for (int op = 0; op < static_cast<int>(plan.ops.size()); ++op) {
      if (!uses(plan.ops[op], parameter)) continue;
      is_used = true;
      holds_all = holds_all && holds(plan.units[i], op);
    }
    if (is_used && holds_all) innermost = i;
  }
  return innermost;
}

bool uses_units_alike(const Plan& plan) {
  for (int step = 0; step < static_cast<int>(plan.steps.size()); ++step) {
    for (const PassPlan& pass : plan.steps[step].passes) {
      if (pass.reuses_graph) continue;
      RankPass first(plan, step, pass, 0);
      const std::vector<Change> forward = first.forward();
      const std::vector<Change> backward = first.backward(pass.forwards);
      for (int rank = 1; rank < plan.ranks; ++rank) {
        RankPass other(plan, step, pass, rank);
        if (other.forward() != forward || other.backward(pass.forwards) != backward) return false;
      }
    }
  }
  return true;
}

}  // namespace lockstep::differential
