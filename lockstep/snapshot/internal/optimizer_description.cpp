#include "lockstep/snapshot/internal/optimizer_description.h"

#include <algorithm>

#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

namespace lockstep::inline internal {
namespace {

void set_value(double& target, const c10::IValue& value) {
  target = value.toDouble();
}
void set_value(bool& target, const c10::IValue& value) {
  target = value.toBool();
}
void set_value(std::tuple<double, double>& target, const c10::IValue& value) {
  const auto& elements = value.toTupleRef().elements();
  target = {elements.at(0).toDouble(), elements.at(1).toDouble()};
}

}  // namespace

bool has_state(const OptimizerDescription& description, std::string_view name) {
  const auto is_name = [&](const char* one) { return name == one; };
  return (description.counts_steps && name == "step") ||
         std::ranges::any_of(description.numbers, is_name) ||
         std::ranges::any_of(description.tensors, is_name);
}

DescribedOptions::DescribedOptions(const OptimizerDescription& of) : description(&of) {
  for (const auto& [name, value] : of.options) values.push_back(value);
}

std::unique_ptr<torch::optim::OptimizerOptions> DescribedOptions::clone() const {
  return std::make_unique<DescribedOptions>(*this);
}

double DescribedOptions::get_lr() const {
  return std::get<double>(values.front());
}

void DescribedOptions::set_lr(double lr) {
  values.front() = lr;
}

void DescribedOptions::serialize(torch::serialize::OutputArchive& archive) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::visit([&](const auto& value) { archive.write(description->options[i].first, value); },
               values[i]);
  }
}

void DescribedOptions::serialize(torch::serialize::InputArchive& archive) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    c10::IValue read;
    if (!archive.try_read(description->options[i].first, read)) continue;
    std::visit([&](auto& value) { set_value(value, read); }, values[i]);
  }
}

at::ScalarType state_dtype_of(const DescribedOptions& options, const at::Tensor& parameter) {
  const at::ScalarType own = parameter.scalar_type();
  const bool is_low = own == at::kBFloat16 || own == at::kHalf;
  return is_low ? options.state_dtype.value_or(own) : own;
}

bool requires_tensor(const DescribedOptions& options, std::size_t k) {
  const OptimizerDescription& description = *options.description;
  if (k < description.required_tensors) return true;
  const std::string_view tensor = description.tensors[k];
  for (std::size_t i = 0; i < options.values.size(); ++i) {
    const std::string_view option = description.options[i].first;
    const bool* const flag = std::get_if<bool>(&options.values[i]);
    const double* const number = std::get_if<double>(&options.values[i]);
    if ((flag == nullptr || !*flag) && (number == nullptr || !(*number > 0))) continue;
    for (const auto& [requiring, required] : description.tensors_of_options) {
      if (requiring == option && required == tensor) return true;
    }
  }
  return false;
}

DescribedState::DescribedState(const OptimizerDescription& of)
    : description(&of), numbers(of.numbers.size(), 1.0), tensors(of.tensors.size()) {}

std::unique_ptr<torch::optim::OptimizerParamState> DescribedState::clone() const {
  return std::make_unique<DescribedState>(*this);
}

void DescribedState::serialize(torch::serialize::OutputArchive& archive) const {
  if (description->counts_steps) archive.write("step", c10::IValue(step));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    archive.write(description->numbers[i], c10::IValue(numbers[i]));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined()) archive.write(description->tensors[i], c10::IValue(tensors[i]));
  }
}

void DescribedState::serialize(torch::serialize::InputArchive& archive) {
  c10::IValue read;
  if (description->counts_steps && archive.try_read("step", read)) step = read.toInt();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (archive.try_read(description->numbers[i], read)) numbers[i] = read.toDouble();
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (archive.try_read(description->tensors[i], read)) tensors[i] = read.toTensor();
  }
}

const OptimizerDescription* find_description(const torch::optim::Optimizer& optimizer) {
  const auto* const options = dynamic_cast<const DescribedOptions*>(&optimizer.defaults());
  return options == nullptr ? nullptr : options->description;
}

}  // namespace lockstep::inline internal
