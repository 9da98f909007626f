#include "tests/fuzz/differential/program.h"

#include <optional>
#include <sstream>
#include <type_traits>
#include <vector>

#include "lockstep/base/internal/concat.h"

namespace lockstep::differential {
namespace {

// Members of aggregates that are not at their defaults, as designated initializers.
class Members {
 public:
  template <class Value>
  void add(const char* name, const Value& value, const Value& usual) {
    if (value != usual) text_ += concat(text_.empty() ? "" : ", ", ".", name, " = ", code(value));
  }
  void add_code(const char* name, const std::string& value) {
    text_ += concat(text_.empty() ? "" : ", ", ".", name, " = ", value);
  }
  std::string braced() const { return "{" + text_ + "}"; }

  template <class Items>
  static std::string list(const Items& items) {
    std::string text;
    for (const auto& item : items) text += concat(text.empty() ? "" : ", ", code(item));
    return "{" + text + "}";
  }

 private:
  static std::string code(bool value) { return value ? "true" : "false"; }
  static std::string code(at::ScalarType value) { return concat("at::k", c10::toString(value)); }
  template <class Value>
  static std::string code(const std::optional<Value>& value) {
    return value ? code(*value) : "std::nullopt";
  }
  template <class Value>
  static std::string code(const std::vector<Value>& values) {
    return list(values);
  }
  template <class Value>
  static std::string code(const Value& value) {
    if constexpr (std::is_enum_v<Value>) {
      return concat("static_cast<", name_of(value), ">(", static_cast<int>(value), ")");
    } else {
      std::ostringstream text;
      text << value;
      return text.str();
    }
  }
  static const char* name_of(Layout) { return "Layout"; }
  static const char* name_of(OpKind) { return "OpKind"; }
  static const char* name_of(View) { return "View"; }
  static const char* name_of(GradAction) { return "GradAction"; }
  static const char* name_of(HookPlan) { return "HookPlan"; }
  static const char* name_of(OptimizerPlan) { return "OptimizerPlan"; }
  static const char* name_of(ClipPlan) { return "ClipPlan"; }
  static const char* name_of(Backend) { return "Backend"; }

  std::string text_;
};

#define ADD(member) members.add(#member, value.member, usual.member)

std::string code_of(const ParameterPlan& value) {
  const ParameterPlan usual;
  Members members;
  members.add_code("sizes", Members::list(value.sizes));
  ADD(dtype);
  ADD(layout);
  ADD(is_trained);
  ADD(is_ignored);
  ADD(is_delayed);
  ADD(hook_factor);
  return members.braced();
}

std::string code_of(const OpPlan& value) {
  const OpPlan usual;
  Members members;
  ADD(kind);
  ADD(parameter);
  ADD(second);
  ADD(third);
  ADD(view);
  ADD(sparse);
  ADD(adds_input);
  ADD(is_side);
  ADD(is_checkpointed);
  ADD(uses);
  ADD(later_uses);
  ADD(left_out);
  ADD(delays);
  return members.braced();
}

std::string code_of(const PassPlan& value) {
  const PassPlan usual;
  Members members;
  ADD(exchanges);
  ADD(guards_forward);
  ADD(reuses_graph);
  ADD(forwards);
  ADD(reaches_nothing);
  ADD(takes_gradients);
  ADD(evaluates);
  ADD(action);
  ADD(samples);
  ADD(has_data);
  ADD(weights);
  ADD(delays);
  return members.braced();
}

std::string code_of(const OptionsPlan& value) {
  const OptionsPlan usual;
  Members members;
  ADD(caps_mb);
  ADD(caps_as_list);
  ADD(init_sync);
  ADD(forward_sync_buffers);
  ADD(find_unused_parameters);
  ADD(static_graph);
  ADD(gradient_as_bucket_view);
  ADD(gradient_norm);
  ADD(measure_exchange);
  ADD(step_timer);
  ADD(check_replicas_every);
  ADD(exchange_dtype);
  ADD(hook);
  ADD(local_sgd_from);
  ADD(one_copy_per_machine);
  ADD(replicas);
  ADD(replicas_alternate);
  ADD(reshard_after_forward);
  return members.braced();
}

std::string head_of(const Plan& value) {
  const Plan usual;
  Members members;
  ADD(seed);
  ADD(ranks);
  ADD(backend);
  ADD(threads);
  ADD(compute);
  ADD(has_buffer);
  ADD(syncs_batch_norm);
  ADD(penalizes_parameters);
  ADD(double_backward);
  ADD(penalizes_gradients);
  ADD(is_weighted);
  ADD(joins);
  ADD(accumulation_steps);
  members.add_code("options", code_of(value.options));
  ADD(optimizer);
  ADD(is_sharded);
  ADD(is_of_lockstep);
  ADD(clip);
  ADD(delay_us);
  return members.braced();
}

#undef ADD

}  // namespace

std::string program(const Plan& plan) {
  std::ostringstream text;
  std::istringstream lines(describe(plan));
  for (std::string line; std::getline(lines, line);) text << "// " << line << "\n";
  text << "#include <cstdio>\n\n#include \"lockstep/program/run_main.h\"\n"
          "#include \"lockstep/comm/init_process_group.h\"\n"
          "#include \"tests/fuzz/differential/groups.h\"\n"
          "#include \"tests/fuzz/differential/run.h\"\n\n"
          "using namespace lockstep::differential;\n\nint main() {\n"
          "  return lockstep::run_main([] {\n    lockstep::init_process_group();\n"
       << "    Plan plan" << head_of(plan) << ";\n    plan.parameters = {\n";
  for (const ParameterPlan& parameter : plan.parameters)
    text << "        " << code_of(parameter) << ",\n";
  text << "    };\n    plan.ops = {\n";
  for (const OpPlan& op : plan.ops) text << "        " << code_of(op) << ",\n";
  text << "    };\n    plan.units = {";
  for (const UnitPlan& unit : plan.units) text << "{" << unit.first << ", " << unit.last << "}, ";
  text << "};\n    plan.steps = {\n";
  for (const StepPlan& step : plan.steps) {
    text << "        {.passes = {\n";
    for (const PassPlan& pass : step.passes) text << "             " << code_of(pass) << ",\n";
    text << "         }, .evaluates = " << step.evaluates << "},\n";
  }
  text << "    };\n    Groups groups;\n"
          "    const Failure failure = run(plan, groups.get(plan.backend));\n"
          "    if (failure) std::printf(\"%s: %s\\n\", failure.where.c_str(), "
          "failure.what.c_str());\n"
          "    return failure ? 1 : 0;\n  });\n}\n";
  return text.str();
}

}  // namespace lockstep::differential
