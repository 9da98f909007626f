#include "lockstep/fully_shard/internal/module_parameters.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>

#include <torch/nn/module.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

bool is_ignored(const SharedParameter& parameter, const std::vector<std::string>& ignored) {
  return std::ranges::any_of(parameter.names, [&](const std::string& name) {
    return std::ranges::find(ignored, name) != ignored.end();
  });
}

std::vector<SharedParameter> all_parameters(const torch::nn::Module& module) {
  std::vector<SharedParameter> all;
  std::unordered_map<const void*, std::size_t> places;
  for (const auto& item : module.named_parameters()) {
    const auto [place, is_new] = places.emplace(item.value().unsafeGetTensorImpl(), all.size());
    if (is_new) all.push_back({item.value(), {}});
    all[place->second].names.push_back(item.key());
  }
  return all;
}

void add_units(const torch::nn::Module& module, const std::string& prefix,
               const AutoWrapPolicy& policy, std::vector<std::string>& names) {
  for (const auto& child : module.named_children()) {
    const std::string name = prefix + child.key();
    if (policy(name, *child.value())) names.push_back(name);
    add_units(*child.value(), name + ".", policy, names);
  }
}

struct MemoryRange {
  const std::byte* begin;
  const std::byte* end;
  const SharedParameter* parameter;
};

MemoryRange memory_of(const SharedParameter& shared) {
  const at::Tensor& parameter = shared.parameter;
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < parameter.dim(); ++dim) {
    last += (parameter.size(dim) - 1) * parameter.stride(dim);
  }
  const auto* const begin = static_cast<const std::byte*>(parameter.const_data_ptr());
  return {begin, begin + (last + 1) * static_cast<std::int64_t>(parameter.element_size()), &shared};
}

void check_memory(const std::vector<SharedParameter>& parameters) {
  std::vector<MemoryRange> ranges;
  for (const SharedParameter& each : parameters) {
    if (each.parameter.numel() > 0) ranges.push_back(memory_of(each));
  }
  std::ranges::sort(ranges, {}, &MemoryRange::begin);
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin >= ranges[i - 1].end) continue;
    throw UsageError(concat("fully_shard: parameters '", ranges[i - 1].parameter->names.front(),
                            "' and '", ranges[i].parameter->names.front(),
                            "' are different tensors with memory in common, which sharding would "
                            "part; register one tensor under both names"));
  }
}

}  // namespace

std::vector<SharedParameter> parameters_with_names(const torch::nn::Module& module,
                                                   const std::vector<std::string>& ignored) {
  std::vector<SharedParameter> parameters = all_parameters(module);
  for (const std::string& name : ignored) {
    const bool is_known = std::ranges::any_of(
        parameters, [&](const SharedParameter& each) { return is_ignored(each, {name}); });
    if (is_known) continue;
    throw UsageError(concat("fully_shard: ignored_parameters names '", name,
                            "', which is no parameter of the module; names are those of "
                            "named_parameters()"));
  }
  std::erase_if(parameters, [&](const auto& each) { return is_ignored(each, ignored); });
  return parameters;
}

std::vector<at::Tensor> ignored_parameters_of(const torch::nn::Module& module,
                                              const std::vector<std::string>& ignored) {
  std::vector<at::Tensor> tensors;
  for (const SharedParameter& each : all_parameters(module)) {
    if (is_ignored(each, ignored)) tensors.push_back(each.parameter);
  }
  return tensors;
}

std::vector<std::string> unit_names_of(const torch::nn::Module& module,
                                       const AutoWrapPolicy& policy) {
  std::vector<std::string> names{""};
  if (policy) add_units(module, "", policy, names);
  return names;
}

void check_shardable(const ProcessGroup& group, const std::vector<SharedParameter>& parameters) {
  if (parameters.empty()) {
    throw UsageError(concat("fully_shard on rank ", group.rank(),
                            ": the module has no parameters to shard; use it as it is"));
  }
  for (const SharedParameter& each : parameters) {
    const at::Tensor& parameter = each.parameter;
    if (parameter.device() != group.device()) {
      throw UsageError(concat("fully_shard on rank ", group.rank(), ": parameter '",
                              each.names.front(), "' is on ", parameter.device().str(),
                              ", and the group exchanges tensors on ", group.device().str(),
                              "; move the module there before"));
    }
    if (parameter.is_complex() || parameter.layout() != at::kStrided) {
      throw UsageError(concat("fully_shard on rank ", group.rank(), ": parameter '",
                              each.names.front(), "' is ", parameter.dtype().name(), " ",
                              parameter.layout(),
                              "; dense real parameters can be sharded, ignore others with "
                              "ignored_parameters"));
    }
    if (parameter.numel() > 0 && parameter.storage().nbytes() == 0) {
      throw UsageError(concat("fully_shard on rank ", group.rank(), ": parameter '",
                              each.names.front(),
                              "' has no memory; a module can be sharded once, and its values must "
                              "be there"));
    }
  }
  check_memory(parameters);
}

}  // namespace lockstep::inline internal
