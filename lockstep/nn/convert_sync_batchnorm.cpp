#include "lockstep/nn/convert_sync_batchnorm.h"

#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/nn/internal/batch_norm_interception.h"

namespace lockstep {
namespace {

struct Found {
  std::string name;
  at::Tensor weight;
  at::Tensor running_mean;
  std::weak_ptr<const torch::nn::Module> module;
  std::int64_t channels = 0;
};

template <class BatchNorm>
bool add_if(std::vector<Found>& found, const std::string& name, torch::nn::Module& module) {
  const auto* norm = module.as<BatchNorm>();
  if (!norm) return false;
  found.push_back({.name = name,
                   .weight = norm->weight,
                   .running_mean = norm->running_mean,
                   .module = module.weak_from_this(),
                   .channels = norm->options.num_features()});
  return true;
}

std::vector<Found> find_batch_norms(torch::nn::Module& root) {
  std::vector<Found> found;
  root.apply([&](const std::string& name, torch::nn::Module& module) {
    add_if<torch::nn::BatchNorm1dImpl>(found, name, module) ||
        add_if<torch::nn::BatchNorm2dImpl>(found, name, module) ||
        add_if<torch::nn::BatchNorm3dImpl>(found, name, module);
  });
  return found;
}

const Found* without_identity(const std::vector<Found>& found) {
  for (const Found& norm : found) {
    if (!norm.weight.defined() && !norm.running_mean.defined()) return &norm;
  }
  return nullptr;
}

// Throws on every rank where one cannot convert, or would convert something else.
void check_agreement(const ProcessGroup& group, const std::vector<Found>& found) {
  const Found* const bad = without_identity(found);
  std::int64_t shape = 0;
  for (const Found& norm : found) {
    shape = shape * 31 + norm.channels;
    for (const char letter : norm.name) shape = (shape * 131 + letter) % 1'000'000'007;
  }
  const auto count = static_cast<std::int64_t>(found.size());
  const auto rows = gather_rows(group, {bad ? 1 : 0, count, shape});
  const auto place = concat("convert_sync_batchnorm on rank ", group.rank());
  if (bad) {
    throw UsageError(concat(place, ": '", bad->name,
                            "' has neither affine parameters nor running statistics, so its calls "
                            "cannot be recognised; use lockstep::SyncBatchNorm instead"));
  }
  for (int rank = 0; rank < group.world_size(); ++rank) {
    if (rows[rank][0] != 0) {
      throw PeerFailed(
          {.operation = "convert_sync_batchnorm", .own_rank = group.rank(), .ranks = {rank}},
          concat("rank ", rank,
                 " has a BatchNorm that cannot be converted; see the error of that rank"));
    }
    if (rows[rank] != rows[group.rank()]) {
      throw UsageError(concat(place, ": this module has ", count, " BatchNorms, that of rank ",
                              rank, " has ", rows[rank][1],
                              rows[rank][1] == count ? " of other names or sizes" : "",
                              "; convert the same module on every rank"));
    }
  }
}

}  // namespace

std::size_t convert_sync_batchnorm(torch::nn::Module& module,
                                   const ConvertSyncBatchNormOptions& options) {
  const ProcessGroup group =
      options.process_group ? options.process_group : default_process_group();
  const std::vector<Found> found = find_batch_norms(module);
  check_agreement(group, found);
  const bool communicates = !found.empty() && needs_layer_group(group);
  // Before those of modules that are gone are forgotten: their group may serve again.
  const auto layers = communicates ? layer_group(group) : nullptr;
  for (const Found& norm : found) release_batch_norm(norm.weight, norm.running_mean);
  forget_dead_layers();
  if (!layers) return found.size();
  for (const Found& norm : found) {
    const auto layer = std::make_shared<const SyncLayer>(
        SyncLayer{.layers = layers, .number = layers->number_layer(), .name = norm.name});
    intercept_batch_norm(norm.weight, norm.running_mean, layer, norm.module);
  }
  return found.size();
}

}  // namespace lockstep
