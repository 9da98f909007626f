#include "lockstep/pipeline/pipeline.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/internal/each_once.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/pipeline/internal/local_link.h"
#include "lockstep/pipeline/internal/process_link.h"
#include "lockstep/pipeline/internal/replica_sum.h"
#include "lockstep/pipeline/internal/stage_runner.h"
#include "lockstep/pipeline/schedule.h"

namespace lockstep {
namespace {

using Stages = std::vector<torch::nn::Sequential>;

PipelineOptions resolved(PipelineOptions options) {
  if (options.devices.empty() && !options.process_group) {
    options.process_group = default_process_group();
  }
  return options;
}

int ranks_of(const PipelineOptions& options) {
  return options.devices.empty() ? options.process_group.world_size()
                                 : static_cast<int>(options.devices.size());
}

PipelineShape shape_of(const PipelineOptions& options) {
  return {.ranks = ranks_of(options),
          .chunks_per_rank = options.chunks_per_rank,
          .micro_batches = options.micro_batches};
}

// Ranks that plan differently would wait for each other. `more`: of what else they must not differ.
void check_agreement(const PipelineOptions& options, const std::string& more) {
  const ProcessGroup& group = options.process_group;
  if (!options.devices.empty() || group.world_size() == 1) return;
  const int replicas = options.replicate_group ? options.replicate_group.world_size() : 1;
  check_same_text(
      group, "make a pipeline",
      concat("schedule=", name_of(options.schedule), " micro_batches=", options.micro_batches,
             " chunks_per_rank=", options.chunks_per_rank, " replicas=", replicas, " ", more));
}

std::string cut_text(const std::vector<std::int64_t>& cuts) {
  std::string text = "cuts=";
  for (const std::int64_t cut : cuts) text += concat(cut, ",");
  return text;
}

Stages own_stages(const torch::nn::Sequential& net, const PipelineOptions& options) {
  // First, so that all ranks refuse what one refuses.
  check_agreement(options, concat("layers=", net->size(), " ", cut_text(options.cuts)));
  const PipelineShape shape = shape_of(options);
  plan_pipeline(options.schedule, shape, 0);  // Throws for what cannot be planned.
  const auto cuts =
      options.cuts.empty() ? balance_stages(parameter_costs(net), shape.stages()) : options.cuts;
  if (options.cuts.empty()) check_agreement(options, cut_text(cuts));
  if (static_cast<int>(cuts.size()) + 1 != shape.stages()) {
    throw UsageError(concat("make a pipeline: ", cuts.size(), " cuts make ", cuts.size() + 1,
                            " stages, but ", shape.ranks, " ranks with ", shape.chunks_per_rank,
                            " chunks have ", shape.stages()));
  }
  Stages stages = cut_into_stages(net, cuts);
  if (!options.devices.empty()) return stages;
  Stages own;
  for (int stage = options.process_group.rank(); stage < shape.stages(); stage += shape.ranks) {
    own.push_back(stages[static_cast<std::size_t>(stage)]);
  }
  return own;
}

void check_samples(std::int64_t samples, const at::Tensor& tensor, const char* name) {
  if (!tensor.defined()) return;
  if (tensor.dim() > 0 && tensor.size(0) == samples) return;
  throw UsageError(concat("pipeline: ", name, " of shape ", tensor.sizes(), " in a batch of ",
                          samples, " samples; both are [samples, …]"));
}

std::int64_t samples_of(const at::Tensor& inputs, const at::Tensor& targets) {
  const at::Tensor& given = inputs.defined() ? inputs : targets;
  if (!given.defined() || given.dim() == 0 || given.size(0) == 0) {
    throw UsageError("pipeline: a batch without samples; give [samples, …] on every rank");
  }
  check_samples(given.size(0), inputs, "inputs");
  check_samples(given.size(0), targets, "targets");
  return given.size(0);
}

}  // namespace

struct Pipeline::State {
  State(Stages stages, const PipelineOptions& its_options);

  void run(PipelinePass& pass, const at::Tensor& inputs, const at::Tensor& targets);
  double run_with_loss(const at::Tensor& inputs, const at::Tensor& targets, const Loss& loss,
                       bool with_backward);

  bool in_one_process() const { return !link; }
  bool has_stage(int stage) const {
    return in_one_process() || stage % shape.ranks == options.process_group.rank();
  }
  void weigh(PipelinePass& pass) const;
  void run_actions(PipelinePass& pass, int micro_batches);
  template <class Action>
  void giving_up_on_errors(Action&& action);

  PipelineOptions options;
  PipelineShape shape;
  std::vector<StageRunner> runners;  // one, or in one process one a device
  LocalLink local;
  std::optional<ProcessLink> link;
  std::optional<ReplicaSum> replicas;
  Stages all;  // of this process
};

Pipeline::State::State(Stages stages, const PipelineOptions& its_options)
    : options(its_options), shape(shape_of(options)), all(std::move(stages)) {
  const bool on_devices = !options.devices.empty();
  check_agreement(options, concat("stages_here=", all.size()));
  const int expected = on_devices ? shape.stages() : shape.chunks_per_rank;
  plan_pipeline(options.schedule, shape, 0);
  if (static_cast<int>(all.size()) != expected) {
    throw UsageError(
        concat("make a pipeline: ", all.size(), " stages where this process has ", expected));
  }
  if (!on_devices && shape.ranks > 1) link.emplace(options.process_group, shape.stages());
  const int local_ranks = on_devices ? shape.ranks : 1;
  for (int rank = 0; rank < local_ranks; ++rank) {
    Stages chunks;
    for (std::size_t i = static_cast<std::size_t>(rank); i < all.size();
         i += static_cast<std::size_t>(local_ranks)) {
      chunks.push_back(all[i]);
    }
    runners.emplace_back(std::move(chunks), on_devices ? rank : options.process_group.rank(),
                         shape.ranks,
                         on_devices ? options.devices[static_cast<std::size_t>(rank)]
                                    : options.process_group.device());
  }
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
  for (const auto& stage : all) {
    for (const at::Tensor& each : stage->parameters()) parameters.push_back(each);
    for (const at::Tensor& each : stage->buffers()) buffers.push_back(each);
  }
  replicas.emplace(options.replicate_group, each_once(parameters), buffers);
}

// Of each micro-batch, its part of the whole batch of all replicas.
void Pipeline::State::weigh(PipelinePass& pass) const {
  double total = 0;
  for (const at::Tensor& each : pass.targets) {
    const double weight = options.weight ? options.weight(each) : static_cast<double>(each.size(0));
    // What is no weight makes a sum that all replicas refuse.
    total += weight >= 0 ? weight : std::numeric_limits<double>::quiet_NaN();
    pass.weights.push_back(weight);
  }
  total = replicas->sum(total);
  if (!(total > 0 && std::isfinite(total))) {
    throw UsageError(concat("pipeline: the weights of a batch add up to ", total,
                            "; each must be 0 or more, and their sum above 0 and finite"));
  }
  for (double& weight : pass.weights) weight /= total;
}

void Pipeline::State::run(PipelinePass& pass, const at::Tensor& inputs, const at::Tensor& targets) {
  const std::int64_t samples = samples_of(inputs, targets);
  const auto micro_batches =
      static_cast<int>(std::min<std::int64_t>(samples, options.micro_batches));
  if (has_stage(0)) {
    if (!inputs.defined()) throw UsageError("pipeline: no inputs on the rank of the first stage");
    pass.inputs = inputs.tensor_split(micro_batches);
  }
  if (has_stage(shape.stages() - 1)) {
    pass.outputs.resize(static_cast<std::size_t>(micro_batches));
    if (pass.loss != nullptr) {
      if (!targets.defined())
        throw UsageError("pipeline: no targets on the rank of the last stage");
      pass.targets = targets.tensor_split(micro_batches);
      weigh(pass);
    }
  }
  run_actions(pass, micro_batches);
}

void Pipeline::State::run_actions(PipelinePass& pass, int micro_batches) {
  const at::AutoGradMode gradients(pass.with_backward);
  const auto is_wanted = [&](const PipelineAction& action) {
    return pass.with_backward || action.kind == PipelineAction::Kind::kForward;
  };
  PipelineShape now = shape;
  now.micro_batches = micro_batches;
  if (in_one_process()) {
    for (const auto& [rank, action, start] : simulate_pipeline(options.schedule, now).actions) {
      if (is_wanted(action)) runners[static_cast<std::size_t>(rank)].run(action, pass, local);
    }
    return;
  }
  link->begin(options.schedule, now);
  for (const auto& action : plan_pipeline(options.schedule, now, options.process_group.rank())) {
    if (is_wanted(action)) runners[0].run(action, pass, *link);
  }
}

template <class Action>
void Pipeline::State::giving_up_on_errors(Action&& action) {
  try {
    action();
  } catch (...) {
    for (StageRunner& runner : runners) runner.forget();
    local.clear();
    if (link) link->give_up(std::current_exception());
    throw;
  }
}

double Pipeline::State::run_with_loss(const at::Tensor& inputs, const at::Tensor& targets,
                                      const Loss& loss, bool with_backward) {
  double mean = 0;
  giving_up_on_errors([&] {
    PipelinePass pass{.loss = &loss, .with_backward = with_backward};
    if (with_backward) replicas->begin_step();
    run(pass, inputs, targets);
    const bool has_loss = pass.loss_sum.defined();
    if (has_loss) mean = replicas->sum(pass.loss_sum.item<double>());
    // The last rank tells it before the others ask: while they still go backward.
    if (link && has_loss) link->share_loss(mean);
    if (with_backward) replicas->sum_gradients();
    if (link && !has_loss) mean = link->share_loss(0);
    if (link) link->finish();
  });
  return mean;
}

Pipeline::Pipeline(const torch::nn::Sequential& net, const PipelineOptions& options)
    : Pipeline(own_stages(net, resolved(options)), options) {}

Pipeline::Pipeline(std::vector<torch::nn::Sequential> stages, const PipelineOptions& options)
    : state_(std::make_unique<State>(std::move(stages), resolved(options))) {}

Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

double Pipeline::step(const at::Tensor& inputs, const at::Tensor& targets, const Loss& loss) {
  return state_->run_with_loss(inputs, targets, loss, true);
}

double Pipeline::evaluate(const at::Tensor& inputs, const at::Tensor& targets, const Loss& loss) {
  return state_->run_with_loss(inputs, targets, loss, false);
}

at::Tensor Pipeline::forward(const at::Tensor& inputs) {
  PipelinePass pass;
  state_->giving_up_on_errors([&] {
    state_->run(pass, inputs, {});
    if (state_->link) state_->link->finish();
  });
  return pass.outputs.empty() ? at::Tensor() : at::cat(pass.outputs);
}

std::vector<at::Tensor> Pipeline::parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& stage : state_->all) {
    for (const auto& parameter : stage->parameters()) all.push_back(parameter);
  }
  return each_once(all);
}

torch::OrderedDict<std::string, at::Tensor> Pipeline::named_parameters() const {
  torch::OrderedDict<std::string, at::Tensor> named;
  for (const auto& stage : state_->all) {
    for (const auto& parameter : stage->named_parameters()) {
      if (named.contains(parameter.key())) {
        throw UsageError(
            concat("pipeline: two stages of this process have a parameter '", parameter.key(),
                   "'; give their layers different names, as in push_back(\"block3\", layer)"));
      }
      named.insert(parameter.key(), parameter.value());
    }
  }
  return named;
}

const std::vector<torch::nn::Sequential>& Pipeline::stages() const {
  return state_->all;
}

void Pipeline::train(bool on) {
  for (auto& stage : state_->all) stage->train(on);
}

void Pipeline::zero_grad() {
  for (auto& stage : state_->all) stage->zero_grad();
}

}  // namespace lockstep
