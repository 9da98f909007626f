#include "tests/fuzz/differential/trainee.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/ddp/hooks.h"
#include "lockstep/nn/convert_sync_batchnorm.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "tests/fuzz/differential/gradient_actions.h"
#include "tests/fuzz/differential/optimizer.h"

namespace lockstep::differential {
namespace {

struct HalveHook final : CommHook {
  std::string describe() const override { return "halve"; }
  std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override {
    bucket.buffer.div_(2);
    return start_average(group, bucket.buffer);
  }
};

std::shared_ptr<CommHook> make_hook(const OptionsPlan& options) {
  switch (options.hook) {
    case HookPlan::kNone:
      return nullptr;
    case HookPlan::kAllReduce:
      return std::make_shared<AllReduceHook>();
    case HookPlan::kHalve:
      return std::make_shared<HalveHook>();
    case HookPlan::kHalf:
      return std::make_shared<CompressHook>(at::kHalf);
    case HookPlan::kBFloat16:
      return std::make_shared<CompressHook>(at::kBFloat16, std::make_shared<AllReduceHook>());
    case HookPlan::kNoop:
      return std::make_shared<NoopHook>();
    case HookPlan::kLocalSgd:
      return std::make_shared<PostLocalSgdHook>(
          PostLocalSgdOptions{.start_local_sgd_iter = options.local_sgd_from});
    case HookPlan::kPowerSgd:
      return std::make_shared<PowerSgdHook>();  // Which averages exactly for many steps.
    case HookPlan::kQuantize:
      break;
  }
  return std::make_shared<QuantizeHook>();
}

DistributedDataParallelOptions make_options(const Plan& plan, const ProcessGroup& group,
                                            const NetImpl& net) {
  const OptionsPlan& planned = plan.options;
  DistributedDataParallelOptions options{.process_group = group,
                                         .init_sync = planned.init_sync,
                                         .forward_sync_buffers = planned.forward_sync_buffers,
                                         .find_unused_parameters = planned.find_unused_parameters,
                                         .static_graph = planned.static_graph,
                                         .gradient_as_bucket_view = planned.gradient_as_bucket_view,
                                         .gradient_norm = planned.gradient_norm,
                                         .exchange_dtype = planned.exchange_dtype,
                                         .check_replicas_every = planned.check_replicas_every,
                                         .measure_exchange = planned.measure_exchange,
                                         .one_copy_per_machine = planned.one_copy_per_machine,
                                         .comm_hook = make_hook(planned)};
  if (planned.caps_as_list) options.bucket_cap_mb_list = planned.caps_mb;
  if (!planned.caps_as_list && !planned.caps_mb.empty()) options.bucket_cap_mb = planned.caps_mb[0];
  if (planned.step_timer) options.step_timer = std::make_shared<StepTimer>();
  for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
    const ParameterPlan& parameter = plan.parameters[i];
    if (parameter.is_ignored) options.parameters_and_buffers_to_ignore.push_back(net.name_of(i));
    if (!parameter.is_delayed) continue;
    options.delay_all_reduce_named_params.push_back(net.name_of(i));
    options.param_to_hook_all_reduce = net.name_of(0);
  }
  return options;
}

// The ranks of one of the two groups of a mesh that this rank is in.
ProcessGroup line_of(const ProcessGroup& group, int length, bool is_consecutive) {
  ProcessGroup own;
  const int lines = group.world_size() / length;
  for (int line = 0; line < lines; ++line) {
    std::vector<int> ranks;
    for (int i = 0; i < length; ++i) {
      ranks.push_back(is_consecutive ? line * length + i : line + i * lines);
    }
    if (const ProcessGroup made = group.new_group(ranks)) own = made;
  }
  return own;
}

FullyShardOptions make_shard_options(const Plan& plan, const ProcessGroup& group) {
  const OptionsPlan& planned = plan.options;
  FullyShardOptions options{.process_group = group,
                            .gradient_norm = planned.gradient_norm,
                            .init_sync = planned.init_sync};
  if (!plan.units.empty()) {
    options.auto_wrap_policy = [](const std::string&, const torch::nn::Module&) { return true; };
  }
  if (planned.reshard_after_forward == 0) options.reshard_after_forward = false;
  if (planned.reshard_after_forward > 1) {
    options.reshard_after_forward = planned.reshard_after_forward;
  }
  if (planned.replicas == 1) return options;
  const int shards = plan.ranks / planned.replicas;
  options.process_group = line_of(group, shards, !planned.replicas_alternate);
  options.replicate_group = line_of(group, planned.replicas, planned.replicas_alternate);
  return options;
}

Net make_net(const Plan& plan, const ProcessGroup& group) {
  Net net(plan, group.rank());
  if (plan.syncs_batch_norm) convert_sync_batchnorm(*net, {.process_group = group});
  return net;
}

void sleep(const Plan& plan) {
  std::this_thread::sleep_for(std::chrono::microseconds(plan.delay_us));
}

}  // namespace

Trainee::Trainee(const Plan& plan, const ProcessGroup& group)
    : plan_(plan), rank_(group.rank()), net_(make_net(plan, group)) {
  if (plan.options.replicas > 0) {
    sharded_.emplace(net_, make_shard_options(plan, group));
  } else {
    replica_.emplace(net_, make_options(plan, group, *net_));
  }
  optimizer_ = with_optimizer(plan, [&]<class Optimizer>(const auto& options) {
    const std::vector<at::Tensor> parameters = updated();
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if constexpr (!std::is_base_of_v<FusedOptimizer, Optimizer>) {
      if (plan_.is_sharded) {
        optimizer = std::make_unique<ShardedOptimizer<Optimizer>>(
            parameters, options, ShardedOptimizerOptions{.process_group = group});
        return optimizer;
      }
    }
    optimizer = std::make_unique<Optimizer>(parameters, options);
    return optimizer;
  });
}

// What an optimizer gets.
std::vector<at::Tensor> Trainee::updated() const {
  if (!sharded_) return trained(plan_, net_->model);
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& piece : sharded_->parameters()) {
    if (piece.requires_grad()) pieces.push_back(piece);
  }
  return pieces;
}

// Each rank adds its pieces, of parameters and of gradients, to zeros.
void Trainee::gather_whole() {
  const at::NoGradGuard no_grad;
  const ProcessGroup& group = sharded_->process_group();
  const TensorDict pieces = sharded_->named_parameters();
  std::vector<std::int64_t> sizes;
  for (const auto& [name, piece] : pieces) sizes.push_back(piece.numel());
  const auto all_sizes = gather_rows(group, sizes);
  whole_.assign(plan_.parameters.size(), at::Tensor());
  for (std::size_t place = 0; place < pieces.size(); ++place) {
    const auto& [name, piece] = pieces[place];
    std::int64_t begin = 0;
    for (int rank = 0; rank < group.rank(); ++rank) begin += all_sizes[rank][place];
    std::size_t index = 0;
    while (net_->name_of(index) != name.substr(name.rfind('.') + 1)) ++index;
    const at::Tensor& shape = net_->model.parameters[index];
    const auto whole_of = [&](const at::Tensor& part) {
      const at::Tensor flat = at::zeros({shape.numel()}, part.options());
      flat.narrow(0, begin, part.numel()).copy_(part);
      if (flat.numel() > 0) group.all_reduce(flat);
      return flat.as_strided(shape.sizes(), shape.strides());
    };
    whole_[index] = whole_of(piece.detach()).requires_grad_(piece.requires_grad());
    if (piece.grad().defined()) whole_[index].mutable_grad() = whole_of(piece.grad());
  }
}

std::vector<at::Tensor> Trainee::gradients() const {
  if (!sharded_) return averaged_gradients_of(parameters());
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : whole_) gradients.push_back(parameter.grad());
  return gradients;
}

at::Tensor Trainee::output_of(const at::Tensor& input, int step) {
  return sharded_ ? (*sharded_)(input, step)[0] : (*replica_)(input, step)[0];
}

void Trainee::run_sharded_pass(int step, int pass, const at::Tensor& input) {
  const auto& passes = plan_.steps[step].passes;
  const PassPlan& planned = passes[pass];
  if (planned.action == GradAction::kSetToNone) sharded_->zero_grad();
  separate_gradients(net_->model.parameters);
  const bool is_used_again =
      pass + 1 < static_cast<int>(passes.size()) && passes[pass + 1].reuses_graph;
  sharded_->set_requires_gradient_sync(planned.exchanges);
  if (!planned.reuses_graph) loss_ = forward(step, pass, input);
  if (planned.evaluates) evaluate(step);
  if ((planned.delays >> rank_ & 1) != 0) sleep(plan_);
  backward(loss_, step, pass, is_used_again);
  if (!is_used_again) loss_ = at::Tensor();
  gather_whole();
}

void Trainee::run_pass(int step, int pass, const at::Tensor& input) {
  if (sharded_) return run_sharded_pass(step, pass, input);
  const auto& passes = plan_.steps[step].passes;
  const PassPlan& planned = passes[pass];
  act_on_gradients(plan_, planned.action, parameters());
  const bool is_used_again =
      pass + 1 < static_cast<int>(passes.size()) && passes[pass + 1].reuses_graph;
  const bool guards = !planned.exchanges && !plan_.joins;
  const auto around_all = replica_->no_sync(guards && planned.guards_forward);
  if (!planned.reuses_graph) loss_ = forward(step, pass, input);
  const auto around_backward = replica_->no_sync(guards);
  if ((planned.delays >> rank_ & 1) != 0) sleep(plan_);
  if (planned.takes_gradients) return take_gradients(loss_);
  backward(loss_, step, pass, is_used_again);
  if (!is_used_again) loss_ = at::Tensor();
}

at::Tensor Trainee::forward(int step, int pass, const at::Tensor& joined) {
  const PassPlan& planned = plan_.steps[step].passes[pass];
  at::Tensor sum;
  for (int number = 0; number < planned.forwards; ++number) {
    const Place place{step, pass, rank_, number};
    at::Tensor input = joined.defined() ? joined.detach() : make_input(plan_, place);
    input.requires_grad_();
    const at::Tensor output = output_of(input, step);
    const at::Tensor loss = plan_.reaches_nothing(planned, rank_)
                                ? make_loss_that_reaches_nothing(input)
                                : make_loss(plan_, place, net_->model, input, output);
    sum = sum.defined() ? sum + loss : loss;
  }
  return sum;
}

void Trainee::backward(const at::Tensor& loss, int step, int pass, bool retain_graph) {
  const PassPlan& planned = plan_.steps[step].passes[pass];
  if (plan_.is_weighted) {
    const double weight = planned.weights[rank_];
    // A loss of weight 0 may be anything, as the mean of no samples is. Parameters that are ignored
    // have its gradient all the same.
    const bool ignores = std::any_of(plan_.parameters.begin(), plan_.parameters.end(),
                                     [](const ParameterPlan& p) { return p.is_ignored; });
    const bool is_number = weight != 0 || ignores;
    const at::Tensor any = is_number ? loss : loss * std::numeric_limits<double>::quiet_NaN();
    const WeightedBackwardOptions options{.weight = weight, .retain_graph = retain_graph};
    return sharded_ ? sharded_->backward(any, options) : replica_->backward(any, options);
  }
  if (!plan_.double_backward || !planned.exchanges) return loss.backward({}, retain_graph);
  loss.backward({}, /*keep_graph=*/true, /*create_graph=*/true);
  at::Tensor penalty;
  for (const at::Tensor& parameter : trained(plan_, net_->model)) {
    const at::Tensor gradient = std::exchange(parameter.mutable_grad(), at::Tensor());
    if (!gradient.defined() || !gradient.requires_grad()) continue;
    const at::Tensor part = gradient.square().sum();
    penalty = penalty.defined() ? penalty + part : part;
  }
  penalty.backward();
}

void Trainee::take_gradients(const at::Tensor& loss) {
  taken_.assign(plan_.parameters.size(), at::Tensor());
  const std::vector<at::Tensor> found =
      torch::autograd::grad({loss}, trained(plan_, net_->model), {}, std::nullopt, false, true);
  std::size_t next = 0;
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    if (plan_.parameters[i].is_trained) taken_[i] = found[next++];
  }
}

std::vector<at::Tensor> Trainee::gradients_after(const PassPlan& pass) const {
  if (pass.exchanges) return gradients();
  std::vector<at::Tensor> own;
  for (const at::Tensor& parameter : net_->model.parameters) own.push_back(parameter.grad());
  if (!sharded_) return own;
  // What earlier passes of the step have exchanged lies with the pieces.
  for (std::size_t i = 0; i < own.size(); ++i) {
    const at::Tensor& exchanged = whole_[i].grad();
    if (exchanged.defined()) own[i] = own[i].defined() ? own[i] + exchanged : exchanged;
  }
  return own;
}

void Trainee::evaluate(int step) {
  const at::NoGradGuard no_grad;
  net_->eval();
  output_of(make_input(plan_, {step, 0, rank_, 0}), step);
  net_->train();
}

double Trainee::clip() {
  const double norm = clip_gradients();
  if (sharded_) gather_whole();
  return norm;
}

double Trainee::clip_gradients() {
  const std::vector<at::Tensor> parameters = updated();
  const ProcessGroup group = sharded_ ? sharded_->process_group() : ProcessGroup();
  if (plan_.ranks == 1) separate_gradients(parameters);
  switch (plan_.clip) {
    case ClipPlan::kNone:
      break;
    case ClipPlan::kNorm:
      return clip_grad_norm_(parameters, kMaxNorm, {.process_group = group});
    case ClipPlan::kKnownNorm:
      clip_grads_with_norm_(parameters, kMaxNorm, gradient_norm());
      return gradient_norm();
    case ClipPlan::kInfinityNorm:
      return clip_grad_norm_(
          parameters, kMaxNorm,
          {.norm_type = std::numeric_limits<double>::infinity(), .process_group = group});
    case ClipPlan::kValue:
      clip_grad_value_(parameters, kMaxNorm);
      break;
  }
  return 0;
}

void Trainee::update() {
  step_optimizer(*optimizer_);
  round_parameters(updated());
  if (sharded_) gather_whole();
}

}  // namespace lockstep::differential
