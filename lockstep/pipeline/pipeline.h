#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/ordered_dict.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/pipeline/schedule.h"

namespace lockstep {

/// Options of Pipeline.
struct PipelineOptions {
  /// The ranks of the pipeline; PipelineShape says which rank has which stages. Empty: the default
  /// group.
  ProcessGroup process_group = {};
  /// Not empty: all stages are in this process, one per device, without a group. One thread starts
  /// all passes: CUDA devices run in parallel. The CPU may be named several times.
  std::vector<c10::Device> devices = {};
  /// Data parallelism: ranks that hold the same stages in different pipelines. They start with the
  /// parameters and buffers of their rank 0, and their gradients are summed. Buffers that change in
  /// training, as of batch norms, stay each rank's own.
  ProcessGroup replicate_group = {};
  /// The order of forward and backward passes.
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  /// Number of micro-batches per batch; their sizes differ by at most one. At most the number of
  /// samples.
  int micro_batches = 4;
  /// Stages per rank; above 1 only with kInterleaved1F1B.
  int chunks_per_rank = 1;
  /// Index of the first layer of each stage but the first. Empty: balanced by numbers of
  /// parameters.
  std::vector<std::int64_t> cuts = {};
  /// Weight of a micro-batch's mean loss, by its targets. With weight 0, as for padding only, its
  /// loss and gradients are left out. Layers that normalize over replicas (SyncBatchNorm) still use
  /// its samples, and pass on gradients through them. Unset: the number of samples.
  std::function<double(const at::Tensor& targets)> weight = {};
};

/// Trains a Sequential that is divided into stages over ranks or devices. Gradients are those of
/// the whole model for the mean loss over the batch, on any number of stages:
///
/// ```cpp
/// Pipeline pipeline(net, {.process_group = group, .micro_batches = 8});
/// torch::optim::SGD optimizer(pipeline.parameters(), 1e-2);  // of this rank's stages
/// const double loss = pipeline.step(inputs, targets, torch::mse_loss);
/// optimizer.step();
/// ```
///
/// Stages exchange one tensor, [samples, …], of any dtype that the group supports. Layers see one
/// micro-batch at a time: a batch norm uses its statistics, a dropout the rank's random numbers.
/// The first layer of a stage must not work in place. step(), evaluate() and forward() are
/// collective.
///
/// Threads: one.
/// Lifetime: keeps the groups and the layers of its own stages alive.
/// Errors: UsageError, from constructors on all ranks; PeerLost, TimeoutError and CommError that
/// name the peer and the awaited tensor; PeerFailed if another rank of the pipeline threw. Discard
/// the pipeline after an error from step(), evaluate() or forward().
class Pipeline {
 public:
  /// The mean loss over a micro-batch, a tensor of one element.
  using Loss = std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& targets)>;

  /// Divides a model that all ranks have; a rank keeps the layers of its stages. Parameters need
  /// not be equal on all ranks. Collective.
  Pipeline(const torch::nn::Sequential& net, const PipelineOptions& options);

  /// For a model that no rank can hold: this rank's stages, or with `devices` all stages, in order.
  Pipeline(std::vector<torch::nn::Sequential> stages, const PipelineOptions& options);

  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  /// Runs forward and backward for a batch; adds the gradients to .grad and returns the mean loss
  /// on every rank.
  /// `inputs`, `targets`: [samples, …]. Rank 0 needs inputs, the last rank targets. Other ranks
  /// need only the number of samples: pass one of the two.
  double step(const at::Tensor& inputs, const at::Tensor& targets, const Loss& loss);

  /// As step(), without gradients.
  double evaluate(const at::Tensor& inputs, const at::Tensor& targets, const Loss& loss);

  /// Returns the model's outputs without gradients: on the last rank, undefined on others. `inputs`
  /// as in step().
  at::Tensor forward(const at::Tensor& inputs);

  /// Parameters of this process's stages, each once.
  std::vector<at::Tensor> parameters() const;
  /// The same, with their names in the whole model.
  /// Errors: UsageError if given stages use a name twice.
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;
  /// The stages of this process.
  const std::vector<torch::nn::Sequential>& stages() const;

  /// Puts this process's stages into training or evaluation mode.
  void train(bool on = true);
  /// Puts this process's stages into evaluation mode.
  void eval() { train(false); }
  /// Clears the gradients of this process's stages.
  void zero_grad();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Divides a model into stages, which share its layers and their names: a stage's state dict is a
/// part of the model's.
/// `cuts`: index of the first layer of each stage but the first.
/// Errors: UsageError for cuts that do not rise or are outside of the model. UsageError for a
/// parameter or buffer that two stages share, since two ranks would train it separately.
std::vector<torch::nn::Sequential> cut_into_stages(const torch::nn::Sequential& net,
                                                   const std::vector<std::int64_t>& cuts);

/// The number of parameters of each layer, for balance_stages().
std::vector<double> parameter_costs(const torch::nn::Sequential& net);

/// Options of measured_costs().
struct MeasureOptions {
  /// Rank 0 measures, and all ranks get its costs. Empty: this process measures for itself.
  ProcessGroup process_group = {};
  int repetitions = 5;  ///< after one warm-up; the fastest is used
};

/// Measures forward and backward of each layer, in seconds, for balance_stages(). Parameters, their
/// gradients, buffers and the CPU's random state stay as they are. Collective with a group.
/// `sample`: a batch of the size of a micro-batch, on the model's device; only rank 0 needs it.
/// Errors: UsageError for less than one repetition; what the layers throw; else as Work::wait.
std::vector<double> measured_costs(const torch::nn::Sequential& net, const at::Tensor& sample,
                                   const MeasureOptions& options = {});

/// Divides layers of these costs into contiguous stages of at least one layer. Minimizes the cost
/// of the most expensive stage, then makes the others as equal as possible. Returns the index of
/// the first layer of each stage but the first; the same on all machines.
/// Errors: UsageError for more stages than layers, and for a cost that is negative or not a number.
std::vector<std::int64_t> balance_stages(const std::vector<double>& costs, int stages);

}  // namespace lockstep
