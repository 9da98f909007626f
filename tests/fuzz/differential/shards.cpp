#include "tests/fuzz/differential/shards.h"

#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/train/logical_shards.h"
#include "tests/fuzz/differential/net.h"
#include "tests/fuzz/differential/optimizer.h"
#include "tests/shard_oracle.h"

namespace lockstep::differential {
namespace {

using testing::OracleShard;
using testing::step_of_oracle;

double fraction_of_step(const Plan& plan, int step, int shard) {
  const std::vector<int>& samples = plan.steps[step].passes[0].samples;
  const int all = std::accumulate(samples.begin(), samples.end(), 0);
  return all == 0 ? 0 : static_cast<double>(samples[shard]) / all;
}

std::optional<double> weight_of(const Plan& plan, int step, int shard) {
  if (!plan.is_weighted) return std::nullopt;
  return plan.steps[step].passes[0].weights[shard];
}

template <class Forward>
at::Tensor loss_of(const Plan& plan, int step, int shard, NetImpl& net, Forward&& forward) {
  const PassPlan& pass = plan.steps[step].passes[0];
  net.compute_as(shard);
  at::Tensor sum;
  for (int number = 0; number < pass.forwards; ++number) {
    const Place place{step, 0, shard, number};
    const at::Tensor input = make_input(plan, place).requires_grad_();
    const at::Tensor output = forward(input, step)[0];
    const at::Tensor loss = plan.reaches_nothing(pass, shard)
                                ? make_loss_that_reaches_nothing(input)
                                : make_loss(plan, place, net.model, input, output);
    sum = sum.defined() ? sum + loss : loss;
  }
  return sum;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Plan& plan, const NetImpl& net) {
  return with_optimizer(plan, [&]<class Optimizer>(const auto& options) {
    return std::unique_ptr<torch::optim::Optimizer>(
        std::make_unique<Optimizer>(trained(plan, net.model), options));
  });
}

/// One rank's training, as a program would write it.
class ShardedTrainee {
 public:
  ShardedTrainee(const Plan& plan, const ProcessGroup& group)
      : plan_(plan), net_(plan, /*rank=*/0) {
    if (plan.options.one_copy_per_machine) {
      wrapped_.emplace(net_, DistributedDataParallelOptions{.process_group = group,
                                                            .one_copy_per_machine = true});
      own_gradients_.reset(new NoSyncGuard(wrapped_->no_sync()));
    }
    shards_.emplace(
        std::vector<std::shared_ptr<torch::nn::Module>>{net_.ptr()},
        LogicalShardsOptions{.shards = plan.shards,
                             .process_group = group,
                             .gradient_as_bucket_view = plan.options.gradient_as_bucket_view});
    optimizer_ = make_optimizer(plan, *net_);
  }

  /// Returns the mean loss.
  double sum_gradients(int step) {
    optimizer_->zero_grad();
    for (const int shard : shards_->local_shards()) {
      shards_->begin_shard(step, shard);
      const double part = fraction_of_step(plan_, step, shard);
      const at::Tensor loss =
          part > 0 ? loss_of(plan_, step, shard, *net_, forward()) : at::zeros({});
      shards_->backward(loss, {.fraction_of_step = part,
                               .weight = part > 0 ? weight_of(plan_, step, shard) : std::nullopt});
    }
    shards_->end_step(step);
    return shards_->loss();
  }
  void update() {
    const std::vector<at::Tensor> parameters = trained(plan_, net_->model);
    if (plan_.clip == ClipPlan::kValue) clip_grad_value_(parameters, kMaxNorm);
    step_optimizer(*optimizer_);
    round_parameters(parameters);
  }
  const Model& model() const { return net_->model; }

 private:
  std::function<std::vector<at::Tensor>(const at::Tensor&, int)> forward() {
    return [this](const at::Tensor& input, int step) {
      return wrapped_ ? (*wrapped_)(input, step) : net_->forward(input, step);
    };
  }

  const Plan& plan_;
  Net net_;
  std::optional<DistributedDataParallel<NetImpl>> wrapped_;
  std::unique_ptr<NoSyncGuard> own_gradients_;
  std::optional<LogicalShards> shards_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

/// All shards in this process, by LibTorch.
class OneProcess {
 public:
  explicit OneProcess(const Plan& plan)
      : plan_(plan), net_(plan, /*rank=*/0), optimizer_(make_optimizer(plan, *net_)) {}

  double sum_gradients(int step) {
    return step_of_oracle(*net_, plan_.shards, [&](int shard) {
      OracleShard result{.fraction_of_step = fraction_of_step(plan_, step, shard)};
      if (result.fraction_of_step == 0) return result;
      result.weight = weight_of(plan_, step, shard);
      const at::Tensor loss = loss_of(
          plan_, step, shard, *net_,
          [&](const at::Tensor& input, int number) { return net_->forward(input, number); });
      (loss * result.weight.value_or(result.fraction_of_step)).backward();
      result.loss = loss.item<double>();
      return result;
    });
  }
  void update() {
    const std::vector<at::Tensor> parameters = trained(plan_, net_->model);
    for (const at::Tensor& parameter : parameters) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (plan_.clip == ClipPlan::kValue && gradient.defined()) {
        gradient.clamp_(-kMaxNorm, kMaxNorm);
      }
    }
    optimizer_->step();
    round_parameters(parameters);
  }
  const Model& model() const { return net_->model; }

 private:
  const Plan& plan_;
  Net net_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

void compare_sums(const Model& trainee, const Model& oracle, const std::string& where,
                  Failure& failure) {
  std::vector<at::Tensor> actual;
  std::vector<at::Tensor> expected;
  for (std::size_t i = 0; i < oracle.parameters.size(); ++i) {
    const at::Tensor& sum = trainee.parameters[i].grad();
    const at::Tensor& must_be = oracle.parameters[i].grad();
    if (sum.defined() != must_be.defined() && !failure) {
      failure = {where, concat("gradient of p", i, sum.defined() ? " is there" : " is missing")};
    }
    if (!sum.defined() || !must_be.defined()) continue;
    actual.push_back(sum.detach());
    expected.push_back(must_be.detach());
  }
  compare_tensors("gradient", actual, expected, 0, where, failure);
}

at::Tensor number(double value) {
  return at::scalar_tensor(value, at::kDouble);
}

std::vector<at::Tensor> detached(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach());
  return result;
}

}  // namespace

Failure run_in_shards(const Plan& plan, const ProcessGroup& group) {
  at::set_num_threads(1);
  ShardedTrainee trainee(plan, group);
  OneProcess oracle(plan);
  Failure failure;
  for (int step = 0; step < static_cast<int>(plan.steps.size()); ++step) {
    const std::string where = concat("step ", step);
    const double loss = trainee.sum_gradients(step);
    compare_tensors("loss", {number(loss)}, {number(oracle.sum_gradients(step))}, 0, where,
                    failure);
    compare_sums(trainee.model(), oracle.model(), where, failure);
    compare_tensors("buffer", trainee.model().buffers(), oracle.model().buffers(), 0, where,
                    failure);
    trainee.update();
    oracle.update();
    compare_tensors("parameter", detached(trainee.model().parameters),
                    detached(oracle.model().parameters), 0, where, failure);
  }
  return failure;
}

}  // namespace lockstep::differential
