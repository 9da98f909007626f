#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

/// Options and state of Lockstep's optimizers as data, so that snapshots, archives and comparisons
/// of replicas do not need their classes.
namespace lockstep::inline internal {

using OptionValue = std::variant<double, bool, std::tuple<double, double>>;

/// Description of an optimizer, with PyTorch's names.
struct OptimizerDescription {
  const char* name;
  /// Hyperparameters of a parameter group and their defaults; "lr" is the first.
  std::vector<std::pair<const char*, OptionValue>> options;
  /// Further entries of Python's parameter groups. Checked on loading if they change the arithmetic
  /// ("decoupled_weight_decay").
  std::vector<std::pair<const char*, c10::IValue>> constants;
  /// State of a parameter: whether it has "step"; numbers (initially 1); tensors, each of the
  /// parameter's shape or undefined.
  bool counts_steps;
  std::vector<const char*> numbers;
  std::vector<const char*> tensors;
  /// Number of tensors, from the first, that every state has.
  std::size_t required_tensors;
  /// Options, and the tensor that each requires if it is true or above 0.
  std::vector<std::pair<const char*, const char*>> tensors_of_options;
};

/// Whether the state of a parameter has a number, step or tensor of this name.
bool has_state(const OptimizerDescription& description, std::string_view name);

/// Options of a parameter group, in the order of the description.
class DescribedOptions final : public torch::optim::OptimizerOptions {
 public:
  explicit DescribedOptions(const OptimizerDescription& description);

  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override;
  double get_lr() const override;
  void set_lr(double lr) override;
  /// In the format of LibTorch's optimizer of the same name. Options that an archive lacks keep
  /// their values.
  void serialize(torch::serialize::OutputArchive& archive) const override;
  void serialize(torch::serialize::InputArchive& archive) override;

  const OptimizerDescription* description;
  std::vector<OptionValue> values;
  /// Numbers that Python's schedulers keep in a group: "initial_lr", "max_lr", ….
  std::map<std::string, double> scheduler_values = {};
  /// The dtype of new state tensors; unset: the parameter's. Not in state dicts.
  std::optional<at::ScalarType> state_dtype = {};
};

/// The dtype of a parameter's state in such a group.
at::ScalarType state_dtype_of(const DescribedOptions& options, const at::Tensor& parameter);

/// Whether a state with these options has tensor `k` of the description.
bool requires_tensor(const DescribedOptions& options, std::size_t k);

/// State of a parameter, in the order of the description.
class DescribedState final : public torch::optim::OptimizerParamState {
 public:
  explicit DescribedState(const OptimizerDescription& description);

  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  void serialize(torch::serialize::InputArchive& archive) override;

  const OptimizerDescription* description;
  std::int64_t step = 0;
  std::vector<double> numbers;
  std::vector<at::Tensor> tensors;
};

/// The description of one of Lockstep's optimizers; null for any other.
const OptimizerDescription* find_description(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::inline internal
