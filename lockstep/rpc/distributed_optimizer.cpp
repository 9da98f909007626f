#include "lockstep/rpc/distributed_optimizer.h"

#include <map>
#include <mutex>

#include "lockstep/base/error.h"

namespace lockstep::rpc {
namespace {

constexpr const char* kMake = "lockstep.optimizer.make ";
constexpr const char* kStep = "lockstep.optimizer.step";

// One a worker; while it steps no other does.
std::mutex& stepping() {
  static std::mutex mutex;
  return mutex;
}

// An optimizer on the worker that owns its parameters.
struct OwnersOptimizer {
  std::vector<at::Tensor> parameters;
  std::unique_ptr<torch::optim::Optimizer> optimizer;

  void step(std::int64_t context) {
    const std::lock_guard lock(stepping());
    for (at::Tensor& parameter : parameters) {
      parameter.mutable_grad() = gradient_in_context(context, parameter);
    }
    optimizer->step();
    for (at::Tensor& parameter : parameters) parameter.mutable_grad() = at::Tensor();
  }
};

}  // namespace

void register_optimizer(const std::string& name, MakeOptimizer make) {
  register_function(kMake + name, [make = std::move(make)](const std::vector<RRef>& references) {
    std::vector<at::Tensor> parameters;
    for (const RRef& reference : references) {
      parameters.push_back(reference.local_value<at::Tensor>());
    }
    auto optimizer = make(parameters);
    return std::make_shared<OwnersOptimizer>(
        OwnersOptimizer{std::move(parameters), std::move(optimizer)});
  });
  static std::once_flag registered;
  std::call_once(registered, [] {
    register_function(kStep, [](const std::shared_ptr<OwnersOptimizer>& optimizer,
                                std::int64_t context) { optimizer->step(context); });
  });
}

DistributedOptimizer::DistributedOptimizer(const std::string& optimizer,
                                           const std::vector<RRef>& parameters) {
  if (parameters.empty()) throw UsageError("rpc::DistributedOptimizer: there are no parameters");
  std::map<int, std::vector<RRef>> by_owner;
  for (const RRef& parameter : parameters) by_owner[parameter.owner()].push_back(parameter);
  for (const auto& [owner, owned] : by_owner) {
    optimizers_.push_back(remote(owner, kMake + optimizer, owned));
  }
  for (const RRef& made : optimizers_) made.wait_until_ready();
}

void DistributedOptimizer::step(const AutogradContext& context) {
  std::vector<Future<void>> steps;
  for (const RRef& optimizer : optimizers_) {
    steps.push_back(optimizer.call_async<void>(kStep, context.id()));
  }
  for (const Future<void>& step : steps) step.wait();
}

}  // namespace lockstep::rpc
