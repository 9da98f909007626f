// The C++ side of tests/python/parity/optimizers.py: makes steps of Lockstep's optimizers and
// schedulers with gradients that come from formulas, and writes what came out of it for torch.load.
//   optimizers_worker steps CASES FILE       the cases of a JSON file, 100 steps each
//   optimizers_worker resume CASES FILE      from Python's states, which FILE.NAME has
//   optimizers_worker rates CASES FILE       learning rates of schedulers
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/optim/internal/optimizer_fields.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/schedulers.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/save.h"

namespace lockstep::optimizers_worker {
namespace {

using nlohmann::json;
using OptimizerPointer = std::unique_ptr<torch::optim::Optimizer>;

const std::vector<std::vector<std::int64_t>> kShapes = {{3, 5}, {1}, {0}, {1009}, {257, 130}};

at::Tensor formula(at::IntArrayRef sizes, double phase) {
  const auto numel = c10::multiply_integers(sizes);
  return (at::arange(numel, at::kDouble) * 0.7 + phase).sin().view(sizes);
}

struct SetOption {
  const json& given;
  void operator()(const char* name, double& value) const { value = given.value(name, value); }
  void operator()(const char* name, bool& value) const { value = given.value(name, value); }
  void operator()(const char* name, std::tuple<double, double>& value) const {
    if (given.contains(name)) value = {given[name][0], given[name][1]};
  }
};

template <class Options>
Options options_of(const json& given, const Options& defaults = {}) {
  Options options = defaults;
  visit_options(options, SetOption{given});
  if (given.value("float32_state", false)) options.state_dtype = at::kFloat;
  return options;
}

/// Two groups, of which the second has options of its own.
template <class Options>
OptimizerPointer make(const json& test, const std::vector<at::Tensor>& parameters) {
  const auto options = options_of<Options>(test["options"]);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>(parameters.begin(), parameters.begin() + 3));
  groups.emplace_back(std::vector<at::Tensor>(parameters.begin() + 3, parameters.end()),
                      group_options(options_of(test["second"], options)));
  return std::make_unique<FusedOptimizerOf<Options>>(groups, options);
}

const std::map<std::string, OptimizerPointer (*)(const json&, const std::vector<at::Tensor>&)>
    kMakers = {{"SGD", make<SGDOptions>},         {"Adam", make<AdamOptions>},
               {"AdamW", make<AdamWOptions>},     {"Adagrad", make<AdagradOptions>},
               {"NAdam", make<NAdamOptions>},     {"RAdam", make<RAdamOptions>},
               {"Adamax", make<AdamaxOptions>},   {"Adadelta", make<AdadeltaOptions>},
               {"RMSprop", make<RMSpropOptions>}, {"Lion", make<LionOptions>},
               {"LAMB", make<LAMBOptions>}};

at::ScalarType dtype_of(const json& test) {
  const std::string name = test.value("dtype", "float32");
  if (name == "float64") return at::kDouble;
  if (name == "bfloat16") return at::kBFloat16;
  return name == "float16" ? at::kHalf : at::kFloat;
}

std::vector<at::Tensor> make_parameters(const json& test) {
  std::vector<at::Tensor> parameters;
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    at::Tensor values = formula(kShapes[i], static_cast<double>(i)).to(dtype_of(test));
    if (i == 4 && test.value("transposed", false)) values = values.t().contiguous().t();
    parameters.push_back(values.requires_grad_());
  }
  return parameters;
}

/// Learning rates change, and a parameter is without gradient now and then.
void make_steps(const json& test, torch::optim::Optimizer& optimizer,
                const std::vector<at::Tensor>& parameters, int first, int last) {
  for (int step = first; step < last; ++step) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const double phase = static_cast<double>(i) + 10.0 * step;
      at::Tensor gradient = formula(kShapes[i], phase * 1.3).to(dtype_of(test));
      parameters[i].mutable_grad() =
          i == 3 && step % 7 == 3 ? at::Tensor() : gradient * (1 + step % 3);
    }
    for (auto& group : optimizer.param_groups()) {
      if (step % 10 == 9) group.options().set_lr(group.options().get_lr() * 0.9);
    }
    optimizer.step();
  }
}

c10::IValue result_of(const torch::optim::Optimizer& optimizer,
                      const std::vector<at::Tensor>& parameters) {
  c10::impl::GenericDict dict = make_dict();
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : parameters) values.push_back(parameter.detach());
  dict.insert_or_assign("parameters", tensor_list_value(values));
  dict.insert_or_assign("optimizer", optimizer_state_dict(optimizer));
  return dict;
}

json read_cases(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

/// `resume`: the first half of the steps was Python's.
void run_steps(const std::string& cases, const std::string& path, bool resume) {
  c10::impl::GenericDict results = make_dict();
  for (const json& test : read_cases(cases)) {
    const std::string name = test["name"];
    const std::vector<at::Tensor> parameters = make_parameters(test);
    const OptimizerPointer optimizer = kMakers.at(test["optimizer"])(test, parameters);
    if (resume) {
      const c10::IValue saved = load(concat(path, ".", name));
      const std::vector<at::Tensor> values = tensor_list(entry(saved, "parameters", name), name);
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < values.size(); ++i) at::Tensor(parameters[i]).copy_(values[i]);
      load_optimizer_state_dict(*optimizer, entry(saved, "optimizer", name), name);
    } else {
      make_steps(test, *optimizer, parameters, 0, 50);
      results.insert_or_assign(concat(name, ".half"), result_of(*optimizer, parameters).deepcopy());
    }
    make_steps(test, *optimizer, parameters, 50, 100);
    results.insert_or_assign(name, result_of(*optimizer, parameters));
  }
  save(path, c10::IValue(results));
}

using SchedulerPointer = std::shared_ptr<LRScheduler>;

SchedulerPointer make_scheduler(torch::optim::Optimizer& optimizer, const json& test) {
  const std::string kind = test["kind"];
  const json& o = test["options"];
  const auto integer = [&](const char* name, std::int64_t value) { return o.value(name, value); };
  const auto number = [&](const char* name, double value) { return o.value(name, value); };
  const auto parts = [&] {
    std::vector<SchedulerPointer> made;
    for (const json& part : test["parts"]) made.push_back(make_scheduler(optimizer, part));
    return made;
  };
  if (kind == "StepLR") {
    return std::make_shared<StepLR>(
        optimizer, StepLROptions{.step_size = o["step_size"], .gamma = number("gamma", 0.1)});
  }
  if (kind == "MultiStepLR") {
    return std::make_shared<MultiStepLR>(
        optimizer,
        MultiStepLROptions{.milestones = o["milestones"], .gamma = number("gamma", 0.1)});
  }
  if (kind == "ConstantLR") {
    return std::make_shared<ConstantLR>(
        optimizer, ConstantLROptions{.factor = number("factor", 1.0 / 3),
                                     .total_iters = integer("total_iters", 5)});
  }
  if (kind == "LinearLR") {
    return std::make_shared<LinearLR>(
        optimizer, LinearLROptions{.start_factor = number("start_factor", 1.0 / 3),
                                   .end_factor = number("end_factor", 1.0),
                                   .total_iters = integer("total_iters", 5)});
  }
  if (kind == "ExponentialLR") {
    return std::make_shared<ExponentialLR>(optimizer, ExponentialLROptions{.gamma = o["gamma"]});
  }
  if (kind == "PolynomialLR") {
    return std::make_shared<PolynomialLR>(
        optimizer, PolynomialLROptions{.total_iters = integer("total_iters", 5),
                                       .power = number("power", 1.0)});
  }
  if (kind == "CosineAnnealingLR") {
    return std::make_shared<CosineAnnealingLR>(
        optimizer, CosineAnnealingLROptions{.t_max = o["T_max"], .eta_min = number("eta_min", 0)});
  }
  if (kind == "CosineAnnealingWarmRestarts") {
    return std::make_shared<CosineAnnealingWarmRestarts>(
        optimizer,
        CosineAnnealingWarmRestartsOptions{
            .t_0 = o["T_0"], .t_mult = integer("T_mult", 1), .eta_min = number("eta_min", 0)});
  }
  if (kind == "OneCycleLR") {
    return std::make_shared<OneCycleLR>(
        optimizer, OneCycleLROptions{.max_lr = o["max_lr"].is_array()
                                                   ? o["max_lr"].get<std::vector<double>>()
                                                   : std::vector<double>{o["max_lr"].get<double>()},
                                     .total_steps = o["total_steps"],
                                     .pct_start = number("pct_start", 0.3),
                                     .anneal_strategy = o.value("anneal_strategy", "cos") == "cos"
                                                            ? AnnealStrategy::kCos
                                                            : AnnealStrategy::kLinear,
                                     .cycle_momentum = o.value("cycle_momentum", true),
                                     .three_phase = o.value("three_phase", false)});
  }
  if (kind == "SequentialLR") {
    return std::make_shared<SequentialLR>(optimizer, parts(),
                                          o["milestones"].get<std::vector<std::int64_t>>());
  }
  return std::make_shared<ChainedScheduler>(optimizer, parts());
}

/// The optimizers of a scheduler's test: two groups of one parameter each.
OptimizerPointer make_optimizer(const std::string& kind) {
  const std::vector<at::Tensor> first = {at::zeros({2}).requires_grad_()};
  const std::vector<at::Tensor> second = {at::zeros({2}).requires_grad_()};
  const auto groups_with = [&](auto options) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(first);
    groups.emplace_back(second, std::move(options));
    return groups;
  };
  if (kind == "torch.SGD") {
    const auto options = torch::optim::SGDOptions(0.1).momentum(0.5);
    auto optimizer = std::make_unique<torch::optim::SGD>(
        groups_with(std::make_unique<torch::optim::SGDOptions>(options)), options);
    optimizer->param_groups()[1].options().set_lr(0.03);
    return optimizer;
  }
  if (kind == "torch.AdamW") {
    auto optimizer = std::make_unique<torch::optim::AdamW>(
        groups_with(std::make_unique<torch::optim::AdamWOptions>(0.1)),
        torch::optim::AdamWOptions(0.1));
    optimizer->param_groups()[1].options().set_lr(0.03);
    return optimizer;
  }
  if (kind == "SGD") {
    return std::make_unique<SGD>(
        groups_with(group_options(SGDOptions{.lr = 0.03, .momentum = 0.5})),
        SGDOptions{.lr = 0.1, .momentum = 0.5});
  }
  return std::make_unique<AdamW>(groups_with(group_options(AdamWOptions{.lr = 0.03})),
                                 AdamWOptions{.lr = 0.1});
}

double momentum_of(const torch::optim::Optimizer& optimizer, std::size_t group) {
  const auto& options = optimizer.param_groups()[group].options();
  if (const auto* const sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options)) {
    return sgd->momentum();
  }
  if (const auto* const adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&options)) {
    return std::get<0>(adamw->betas());
  }
  if (const auto* const sgd = dynamic_cast<const SGD*>(&optimizer)) {
    return sgd->options(group).momentum;
  }
  return std::get<0>(dynamic_cast<const AdamW&>(optimizer).options(group).betas);
}

void add_row(std::vector<double>& rows, const torch::optim::Optimizer& optimizer) {
  for (std::size_t group = 0; group < 2; ++group) {
    rows.push_back(optimizer.param_groups()[group].options().get_lr());
    rows.push_back(momentum_of(optimizer, group));
  }
}

void run_rates(const std::string& cases, const std::string& path) {
  c10::impl::GenericDict results = make_dict();
  for (const json& test : read_cases(cases)) {
    const std::string name = test["name"];
    const OptimizerPointer optimizer = make_optimizer(test["optimizer"]);
    const std::int64_t steps = test["steps"];
    const std::int64_t begin = test.value("resume_at", std::int64_t{0});
    std::vector<double> rows;
    c10::IValue state;
    const auto drive = [&](auto& scheduler, const std::function<void(std::int64_t)>& step) {
      if (begin > 0) {
        const c10::IValue saved = load(concat(path, ".", name));
        const c10::IValue lrs = entry(saved, "lrs", name);
        scheduler.load_state_dict(entry(saved, "scheduler", name));
        for (std::size_t group = 0; group < 2; ++group) {
          optimizer->param_groups()[group].options().set_lr(lrs.toListRef()[group].toDouble());
        }
      }
      add_row(rows, *optimizer);
      for (std::int64_t i = begin; i < steps; ++i) {
        step(i);
        add_row(rows, *optimizer);
        if (i + 1 == steps / 2) state = scheduler.state_dict();
      }
    };
    if (test["kind"] == "ReduceLROnPlateau") {
      const json& o = test["options"];
      ReduceLROnPlateauOptions options;
      if (o.value("mode", "min") == "max") options.mode = MonitorMode::kMax;
      if (o.value("threshold_mode", "rel") == "abs") {
        options.threshold_mode = ReduceLROnPlateauOptions::ThresholdMode::kAbs;
      }
      options.factor = o.value("factor", 0.1);
      options.patience = o.value("patience", 10);
      options.cooldown = o.value("cooldown", 0);
      options.min_lr = o.value("min_lr", std::vector<double>{0.0});
      ReduceLROnPlateau plateau(*optimizer, options);
      drive(plateau, [&](std::int64_t i) {
        plateau.step(std::sin(static_cast<double>(i) * 0.37) + 5.0 / static_cast<double>(i + 1));
      });
    } else {
      const SchedulerPointer scheduler = make_scheduler(*optimizer, test);
      drive(*scheduler, [&](std::int64_t) { scheduler->step(); });
    }
    c10::impl::GenericDict result = make_dict();
    result.insert_or_assign("rows", at::tensor(rows, at::kDouble).view({-1, 4}));
    result.insert_or_assign("state", state);
    results.insert_or_assign(name, result);
  }
  save(path, c10::IValue(results));
}

int run(int argc, char** argv) {
  const std::string command = argc == 4 ? argv[1] : "";
  if (command == "steps") {
    run_steps(argv[2], argv[3], /*resume=*/false);
  } else if (command == "resume") {
    run_steps(argv[2], argv[3], /*resume=*/true);
  } else if (command == "rates") {
    run_rates(argv[2], argv[3]);
  } else {
    throw UsageError("usage: optimizers_worker steps|resume|rates CASES FILE");
  }
  return 0;
}

}  // namespace

int run_worker(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}

}  // namespace lockstep::optimizers_worker
