#include "bench/ddp_step/exchange.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/fully_shard.h"
#include "models/gpt_layers.h"

namespace lockstep::bench {

// One connection for each backend, whatever it is used for.
ProcessGroup group_over(const std::string& backend, const ProcessGroup& control) {
  static std::map<std::string, ProcessGroup> groups;
  ProcessGroup& group = groups[backend];
  if (!group) {
    std::vector<int> everyone(static_cast<std::size_t>(control.world_size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    group = control.new_group(everyone, {.backend = backend});
  }
  return group;
}

namespace {

c10::intrusive_ptr<c10d::ProcessGroup> c10d_group(const ProcessGroup& group) {
  auto result =
      c10::make_intrusive<c10d::ProcessGroup>(group.c10d_store(), group.rank(), group.world_size());
  const auto type = c10d::ProcessGroup::BackendType::CUSTOM;
  result->setBackend(c10::DeviceType::CPU, type, group.c10d_backend());
  result->setDefaultBackend(type);
  result->setGroupName(group.name());
  return result;
}

// What Python's DistributedDataParallel does around its reducer, with its default buckets and
// gradient_as_bucket_view.
class C10dReplica {
 public:
  C10dReplica(torch::nn::Sequential model, const ProcessGroup& group) : model_(std::move(model)) {
    const std::vector<at::Tensor> parameters = model_->parameters();
    const std::vector<bool> sparse(parameters.size(), false);
    std::unordered_map<std::size_t, std::string> names;
    for (const auto& item : model_->named_parameters()) names.emplace(names.size(), item.key());
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
        parameters, {c10d::kDefaultFirstBucketBytes, c10d::kDefaultBucketBytesCap}, sparse);
    std::reverse(buckets.begin(), buckets.end());
    reducer_ = std::make_shared<c10d::Reducer>(
        parameters, buckets, c10d_group(group), sparse, c10d::kDefaultBucketBytesCap,
        /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/true, names,
        c10d::kDefaultFirstBucketBytes, /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false, std::vector<std::int64_t>());
  }

  at::Tensor forward(const at::Tensor& inputs) {
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
    at::Tensor outputs = model_->forward(inputs);
    reducer_->prepare_for_backward({});
    return outputs;
  }

 private:
  torch::nn::Sequential model_;
  std::shared_ptr<c10d::Reducer> reducer_;
};

}  // namespace

Exchange make_exchange(const std::string& name, const ProcessGroup& control, const Task& task) {
  const std::vector<at::Tensor> parameters = task.model->parameters();
  if (name == "none") {
    return {
        [model = task.model](const at::Tensor& inputs) mutable { return model->forward(inputs); },
        parameters};
  }
  const auto dash = name.find('-');
  const std::string kind = name.substr(0, dash);
  if (dash == std::string::npos ||
      (kind != "lockstep" && kind != "onecopy" && kind != "fullyshard" && kind != "hybridshard" &&
       kind != "c10d" && kind != "barrier")) {
    throw UsageError(concat("ddp_step: there is no exchange '", name,
                            "'; choose none, lockstep-<backend>, onecopy-<backend>, "
                            "fullyshard-<backend>, hybridshard-<backend> or c10d-<backend>"));
  }
  const ProcessGroup group = group_over(name.substr(dash + 1), control);
  if (kind == "barrier") {
    return {[group, model = task.model](const at::Tensor& inputs) mutable {
              group.barrier();
              return model->forward(inputs);
            },
            parameters};
  }
  if (kind == "fullyshard" || kind == "hybridshard") {
    const HybridShard hybrid =
        kind == "hybridshard" ? HybridShard::kShardInMachines : HybridShard::kNone;
    const auto sharded = std::make_shared<FullySharded<torch::nn::SequentialImpl>>(
        task.model, FullyShardOptions{.process_group = group,
                                      .hybrid_shard = hybrid,
                                      .auto_wrap_policy = module_wrap_policy<models::GptBlock>()});
    return {[sharded](const at::Tensor& inputs) { return sharded->forward(inputs); },
            sharded->parameters()};
  }
  if (kind == "c10d") {
    const auto replica = std::make_shared<C10dReplica>(task.model, group);
    return {[replica](const at::Tensor& inputs) { return replica->forward(inputs); }, parameters};
  }
  const auto replica = std::make_shared<DistributedDataParallel<torch::nn::SequentialImpl>>(
      task.model, DistributedDataParallelOptions{.process_group = group,
                                                 .one_copy_per_machine = kind == "onecopy"});
  return {[replica](const at::Tensor& inputs) { return replica->forward(inputs); }, parameters};
}

}  // namespace lockstep::bench
