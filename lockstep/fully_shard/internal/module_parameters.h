#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/fully_shard/sharded_module.h"

namespace lockstep::inline internal {

/// A parameter and the names by which the module and its submodules know it.
struct SharedParameter {
  at::Tensor parameter;
  std::vector<std::string> names;
};

/// The module's parameters, each once, by the first of its names in order, without those of which
/// a name is ignored. Errors: UsageError for an ignored name that is no parameter.
std::vector<SharedParameter> parameters_with_names(const torch::nn::Module& module,
                                                   const std::vector<std::string>& ignored);
std::vector<at::Tensor> ignored_parameters_of(const torch::nn::Module& module,
                                              const std::vector<std::string>& ignored);

/// Names of the modules that are units: "" for the module itself, then those that the policy
/// chooses, outer ones first.
std::vector<std::string> unit_names_of(const torch::nn::Module& module,
                                       const AutoWrapPolicy& policy);

/// Errors: UsageError for no parameter, for one that is not on the group's device, of a dtype that
/// it does not exchange, or without memory, and for two that have memory in common.
void check_shardable(const ProcessGroup& group, const std::vector<SharedParameter>& parameters);

}  // namespace lockstep::inline internal
