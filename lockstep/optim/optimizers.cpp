#include "lockstep/optim/optimizers.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/optim/internal/group_update.h"
#include "lockstep/snapshot/internal/checksum.h"
#include "lockstep/snapshot/internal/optimizer_state.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;

constexpr const char* kArchiveVersion = "1.5.0";  // of LibTorch's format, not of LibTorch

class OptionsCheck {
 public:
  explicit OptionsCheck(const char* optimizer) : optimizer_(optimizer) {}

  void operator()(std::string_view name, double value) const {
    if (name == "dampening") return;
    const bool is_share = name == "rho";
    if (!(value >= 0) || (is_share && value > 1)) refuse(name, value);
  }
  void operator()(std::string_view name, const std::tuple<double, double>& value) const {
    for (const double beta : {std::get<0>(value), std::get<1>(value)}) {
      if (!(beta >= 0 && beta < 1)) refuse(name, beta);
    }
  }
  void operator()(std::string_view, bool) const {}

 private:
  [[noreturn]] void refuse(std::string_view name, double value) const {
    throw UsageError(
        concat(optimizer_, ": ", name, "=", value, " is out of range; it must be at least 0",
               name == "betas" ? ", and less than 1" : "", name == "rho" ? ", and at most 1" : ""));
  }
  const char* optimizer_;
};

template <class Options>
std::unique_ptr<DescribedOptions> checked(const Options& options) {
  const char* const name = Described<Options>::kName;
  visit_options(options, OptionsCheck(name));
  if (options.state_dtype && options.state_dtype != at::kFloat) {
    throw UsageError(concat(name, ": state_dtype is ", *options.state_dtype,
                            "; it must be float32, or empty for the parameter's"));
  }
  if constexpr (std::is_same_v<Options, SGDOptions>) {
    if (options.nesterov && (options.momentum <= 0 || options.dampening != 0)) {
      throw UsageError("SGD: nesterov needs a momentum and no dampening");
    }
  }
  return to_described(options);
}

std::string key_of(const at::Tensor& parameter) {
  return std::to_string(reinterpret_cast<std::size_t>(parameter.unsafeGetTensorImpl()));
}

torch::serialize::InputArchive sub_archive(torch::serialize::InputArchive& archive,
                                           const std::string& name) {
  torch::serialize::InputArchive sub;
  archive.read(name, sub);
  return sub;
}

std::size_t size_in(torch::serialize::InputArchive& archive, const std::string& name) {
  at::Tensor size;
  archive.read(name, size);
  return static_cast<std::size_t>(size.item().toLong());
}

/// Of what ranks with one copy must have alike: options, and of the states of its parameters steps,
/// numbers, and tensors that the copy has yet to take in.
std::uint64_t digest_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> values;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    const auto& options = dynamic_cast<const DescribedOptions&>(group.options());
    values.push_back(options.state_dtype ? static_cast<double>(*options.state_dtype) : -1);
    for (const OptionValue& option : options.values) {
      if (const auto* const pair = std::get_if<std::tuple<double, double>>(&option)) {
        values.insert(values.end(), {std::get<0>(*pair), std::get<1>(*pair)});
      } else if (const auto* const number = std::get_if<double>(&option)) {
        values.push_back(*number);
      } else {
        values.push_back(std::get<bool>(option) ? 1 : 0);
      }
    }
    for (const at::Tensor& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      const ModelCopy::Place place = ModelCopy::find(parameter);
      if (found == optimizer.state().end() || !place.copy) continue;
      const auto& state = dynamic_cast<const DescribedState&>(*found->second);
      // Else a rank that received the state has none.
      if (state.description->counts_steps) values.push_back(static_cast<double>(state.step));
      values.insert(values.end(), state.numbers.begin(), state.numbers.end());
      for (std::size_t k = 0; k < state.tensors.size(); ++k) {
        values.push_back(place.copy->digest_of_new_state(place.index, k, state.tensors[k]));
      }
    }
  }
  return hash_bytes(values.data(), values.size() * sizeof(double));
}

}  // namespace

FusedOptimizer::FusedOptimizer(const std::vector<OptimizerParamGroup>& groups,
                               std::unique_ptr<OptimizerOptions> defaults)
    : Optimizer(std::vector<OptimizerParamGroup>{}, std::move(defaults)) {
  for (const OptimizerParamGroup& group : groups) FusedOptimizer::add_param_group(group);
}

void FusedOptimizer::add_param_group(const OptimizerParamGroup& group) {
  if (group.has_options()) {
    const auto* const own = dynamic_cast<const DescribedOptions*>(&group.options());
    const char* const name = find_description(*this)->name;
    if (own == nullptr || own->description != find_description(*this)) {
      throw UsageError(concat(name, ": the options of parameter group ", param_groups_.size(),
                              " are another optimizer's; make them with group_options(", name,
                              "Options{…})"));
    }
  }
  Optimizer::add_param_group(OptimizerParamGroup(group.params()));
  if (group.has_options()) param_groups_.back().set_options(group.options().clone());
}

at::Tensor FusedOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  CopySteps copies;
  if (ModelCopy::any()) {
    std::vector<at::Tensor> all;
    for (const OptimizerParamGroup& group : param_groups_) {
      all.insert(all.end(), group.params().begin(), group.params().end());
    }
    copies.begin(all, digest_of(*this));
  }
  std::vector<std::unique_ptr<GroupStep>> steps;
  for (std::size_t group = 0; group < param_groups_.size(); ++group) {
    steps.push_back(prepare_group(group));
  }
  copies.commit();
  for (const auto& step : steps) step->run();
  const auto run_shard = [&] {
    for (const auto& step : steps) step->run_shard();
  };
  run_shard();
  copies.end(run_shard);
  return loss;
}

c10::IValue FusedOptimizer::state_dict() const {
  return optimizer_state_dict(*this);
}

void FusedOptimizer::load_state_dict(const c10::IValue& values) {
  load_optimizer_state_dict(*this, values);
}

void FusedOptimizer::save(torch::serialize::OutputArchive& archive) const {
  using torch::serialize::OutputArchive;
  archive.write("pytorch_version", c10::IValue(kArchiveVersion));
  // LibTorch's optimizers ignore it.
  archive.write("optimizer", c10::IValue(find_description(*this)->name));
  OutputArchive states(archive.compilation_unit());
  for (const auto& [parameter, state] : state_) {
    OutputArchive one(archive.compilation_unit());
    state->serialize(one);
    states.write(std::to_string(reinterpret_cast<std::size_t>(parameter)), one);
  }
  archive.write("state", states);
  OutputArchive groups(archive.compilation_unit());
  const auto count = [](std::size_t size) {
    return at::scalar_tensor(static_cast<std::int64_t>(size), at::kLong);
  };
  groups.write("param_groups/size", count(param_groups_.size()));
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    OutputArchive one(archive.compilation_unit());
    const std::vector<at::Tensor>& parameters = param_groups_[g].params();
    one.write("params/size", count(parameters.size()));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      one.write(concat("params/", i), c10::IValue(key_of(parameters[i])));
    }
    OutputArchive options(archive.compilation_unit());
    param_groups_[g].options().serialize(options);
    one.write("options", options);
    groups.write(concat("param_groups/", g), one);
  }
  archive.write("param_groups", groups);
}

namespace {

/// Reads an archive for an optimizer, and changes nothing of it.
class ArchiveReader {
 public:
  using InputArchive = torch::serialize::InputArchive;
  using Groups = std::vector<OptimizerParamGroup>;

  ArchiveReader(const OptimizerDescription& description, const Groups& groups)
      : description_(description), groups_(groups) {}

  void read(InputArchive& archive) {
    c10::IValue optimizer;
    if (archive.try_read("optimizer", optimizer) && optimizer.toStringRef() != description_.name) {
      refuse(concat("it is of ", optimizer.toStringRef()));
    }
    InputArchive saved_states = sub_archive(archive, "state");
    InputArchive groups = sub_archive(archive, "param_groups");
    if (size_in(groups, "param_groups/size") != groups_.size()) {
      refuse("it has another number of parameter groups");
    }
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      InputArchive group = sub_archive(groups, concat("param_groups/", g));
      read_options(group, g);
      read_states(group, saved_states, g);
    }
  }

  OptimizerStates states = {};
  std::vector<std::unique_ptr<DescribedOptions>> options = {};

 private:
  void read_options(InputArchive& group, std::size_t g) {
    InputArchive saved = sub_archive(group, "options");
    const std::vector<std::string> names = saved.keys();
    for (const auto& [name, value] : description_.options) {
      // LibTorch's optimizers have no "maximize".
      if (std::string_view(name) != "maximize" && std::ranges::find(names, name) == names.end()) {
        refuse(concat("its options lack '", name, "'"));
      }
    }
    for (const std::string& name : names) {
      const auto is_name = [&](const auto& option) { return option.first == name; };
      if (std::ranges::none_of(description_.options, is_name)) {
        refuse(concat("it has the option '", name, "'"));
      }
    }
    const auto& current = static_cast<const DescribedOptions&>(groups_[g].options());
    options.push_back(std::make_unique<DescribedOptions>(current));
    options.back()->serialize(saved);
  }

  void read_states(InputArchive& group, InputArchive& all, std::size_t g) {
    const std::vector<at::Tensor>& parameters = groups_[g].params();
    if (size_in(group, "params/size") != parameters.size()) {
      refuse(concat("group ", g, " has another number of parameters"));
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      c10::IValue key;
      group.read(concat("params/", i), key);
      InputArchive saved;
      if (!all.try_read(key.toStringRef(), saved)) continue;
      states[parameters[i].unsafeGetTensorImpl()] = read_state(saved, g, i);
    }
  }

  std::unique_ptr<DescribedState> read_state(InputArchive& saved, std::size_t g, std::size_t i) {
    const std::string of = concat("the state of parameter ", i, " of group ", g);
    for (const std::string& name : saved.keys()) {
      if (!has_state(description_, name)) refuse(concat(of, " has '", name, "'"));
    }
    auto state = std::make_unique<DescribedState>(description_);
    state->serialize(saved);
    if (state->step < 0) refuse(concat(of, " is of step ", state->step));
    const at::IntArrayRef sizes = groups_[g].params()[i].sizes();
    for (std::size_t k = 0; k < state->tensors.size(); ++k) {
      const at::Tensor& tensor = state->tensors[k];
      if (!tensor.defined() && requires_tensor(*options[g], k)) {
        refuse(concat(of, " has no '", description_.tensors[k], "'"));
      }
      if (tensor.defined() && tensor.sizes() != sizes) {
        refuse(concat(of, " has shape ", tensor.sizes(), ", the parameter ", sizes));
      }
    }
    return state;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw UsageError(concat("load ", description_.name, " from an archive: ", what,
                            "; load it into the optimizer that it was saved from"));
  }

  const OptimizerDescription& description_;
  const Groups& groups_;
};

}  // namespace

void FusedOptimizer::load(torch::serialize::InputArchive& archive) {
  const OptimizerDescription& description = *find_description(*this);
  ArchiveReader reader(description, param_groups_);
  const auto wrap = [&](const std::string& what) {
    return UsageError(
        concat("load ", description.name, " from an archive: it is no archive of this optimizer (",
               what, "); load what its save() or LibTorch's ", description.name, " has written"));
  };
  try {
    reader.read(archive);
  } catch (const c10::Error& error) {
    throw wrap(error.what_without_backtrace());
  } catch (const std::out_of_range& error) {
    throw wrap(error.what());
  }
  state_ = std::move(reader.states);
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    param_groups_[g].set_options(std::move(reader.options[g]));
  }
}

template <class Options>
std::unique_ptr<OptimizerOptions> group_options(const Options& options) {
  return checked(options);
}

template <class Options>
FusedOptimizerOf<Options>::FusedOptimizerOf(std::vector<at::Tensor> parameters,
                                            const Options& options)
    : FusedOptimizer({OptimizerParamGroup(std::move(parameters))}, checked(options)) {}

template <class Options>
FusedOptimizerOf<Options>::FusedOptimizerOf(const std::vector<OptimizerParamGroup>& groups,
                                            const Options& options)
    : FusedOptimizer(groups, checked(options)) {}

namespace {

template <class Options, class Groups>
auto& group_at(Groups& groups, std::size_t group) {
  if (group < groups.size()) return groups[group];
  throw UsageError(concat(Described<Options>::kName, ": there is no parameter group ", group,
                          "; the optimizer has ", groups.size()));
}

}  // namespace

template <class Options>
Options FusedOptimizerOf<Options>::options(std::size_t group) const {
  return from_described<Options>(
      static_cast<const DescribedOptions&>(group_at<Options>(param_groups_, group).options()));
}

template <class Options>
void FusedOptimizerOf<Options>::set_options(const Options& options, std::size_t group) {
  auto& current = static_cast<DescribedOptions&>(group_at<Options>(param_groups_, group).options());
  const std::unique_ptr<DescribedOptions> given = checked(options);
  current.values = given->values;
  current.state_dtype = given->state_dtype;
}

template <class Options>
std::unique_ptr<GroupStep> FusedOptimizerOf<Options>::prepare_group(std::size_t group) {
  return prepare_group_step(*this, group, options(group));
}

#define LOCKSTEP_OPTIMIZER(Options)         \
  template class FusedOptimizerOf<Options>; \
  template std::unique_ptr<OptimizerOptions> group_options(const Options&)

LOCKSTEP_OPTIMIZER(SGDOptions);
LOCKSTEP_OPTIMIZER(AdamOptions);
LOCKSTEP_OPTIMIZER(AdamWOptions);
LOCKSTEP_OPTIMIZER(AdagradOptions);
LOCKSTEP_OPTIMIZER(NAdamOptions);
LOCKSTEP_OPTIMIZER(RAdamOptions);
LOCKSTEP_OPTIMIZER(AdamaxOptions);
LOCKSTEP_OPTIMIZER(AdadeltaOptions);
LOCKSTEP_OPTIMIZER(RMSpropOptions);
LOCKSTEP_OPTIMIZER(LionOptions);
LOCKSTEP_OPTIMIZER(LAMBOptions);

#undef LOCKSTEP_OPTIMIZER

}  // namespace lockstep
