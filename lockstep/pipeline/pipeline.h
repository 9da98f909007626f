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

struct PipelineOptions {
  /// Each rank has the stages that PipelineShape says. Empty: the default group.
  ProcessGroup process_group = {};
  /// Not empty: no group; all stages are in this process, a rank a device. One thread begins all
  /// passes: those of CUDA devices run beside each other, the CPU may be named several times.
  std::vector<c10::Device> devices = {};
  /// Ranks that hold the same stages and train them on other samples, each in a pipeline of its
  /// own: begins with their rank 0's parameters and buffers, and sums gradients over them. Buffers
  /// that change later, as those of batch norms, stay each rank's own.
  ProcessGroup replicas = {};
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  /// A batch is divided into so many parts, of sizes that differ by one at most; into as many as it
  /// has samples where those are fewer.
  int micro_batches = 4;
  int chunks_per_rank = 1;
  /// The first layer of each stage but the first. Empty: balanced by numbers of parameters.
  std::vector<std::int64_t> cuts = {};
  /// What the mean over one micro-batch counts, by its targets; 0, as of padding alone, leaves out
  /// its loss and its gradients. To layers that normalize over replicas (SyncBatchNorm) its samples
  /// are samples, and the gradients that these give it count. Unset: its samples.
  std::function<double(const at::Tensor& targets)> weight = {};
};

/// Trains a Sequential that is divided into stages on several ranks, or devices. Gradients are
/// those of the whole net, for the mean loss over the batch, whatever the stages:
///
///   Pipeline pipeline(net, {.process_group = group, .micro_batches = 8});
///   torch::optim::SGD optimizer(pipeline.parameters(), 1e-2);   // of this rank's stages
///   const double loss = pipeline.step(inputs, targets, torch::mse_loss);
///   optimizer.step();
///
/// Between stages goes one tensor, [samples, …], of any dtype that the group takes. Layers see one
/// micro-batch at a time: a batch norm its statistics, a dropout its rank's random numbers. What
/// begins a stage must not work in place. step, evaluate and forward are collective.
/// Threads: one. Lifetime: keeps the groups and its own stages' layers alive. Errors: UsageError,
/// from constructors on all ranks; PeerLost, TimeoutError and CommError naming the peer and what it
/// was waited for; PeerFailed where another rank of the pipeline threw. After any from step,
/// evaluate or forward discard it.
class Pipeline {
 public:
  using Loss = std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& targets)>;

  /// All ranks give the net, with parameters that need not be the same: a rank keeps those of its
  /// stages. Collective.
  Pipeline(const torch::nn::Sequential& net, const PipelineOptions& options);

  /// For nets that no rank can hold: this rank's chunks, or with `devices` all stages in order.
  Pipeline(std::vector<torch::nn::Sequential> stages, const PipelineOptions& options);

  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  /// Forward and backward of a batch: adds the gradient to .grad and returns the mean loss, on
  /// every rank. `inputs` matter on rank 0 and `targets` on the last rank, [samples, …]; elsewhere
  /// only how many there are, and one of the two will do. `loss`: the mean over a micro-batch, one
  /// number.
  double step(const at::Tensor& inputs, const at::Tensor& targets, const Loss& loss);

  /// As step, without gradients.
  double evaluate(const at::Tensor& inputs, const at::Tensor& targets, const Loss& loss);

  /// The net's outputs, without gradients: on the last rank, elsewhere undefined. `inputs` as in
  /// step.
  at::Tensor forward(const at::Tensor& inputs);

  /// Of this process's stages, each once.
  std::vector<at::Tensor> parameters() const;
  /// With their names in the whole net. Errors: UsageError for stages given one by one that use a
  /// name twice.
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;
  const std::vector<torch::nn::Sequential>& stages() const;

  void train(bool on = true);
  void eval() { train(false); }
  void zero_grad();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The stages of a net: the layers up to the first cut, and so on. They share the net's layers and
/// their names, so that a stage's state dict is a part of the net's.
/// Errors: UsageError for cuts that do not rise or lie outside of the net, and for a parameter or
/// buffer that two stages share: two ranks would train it apart.
std::vector<torch::nn::Sequential> cut_into_stages(const torch::nn::Sequential& net,
                                                   const std::vector<std::int64_t>& cuts);

/// The number of parameters of each layer: what balance_stages takes.
std::vector<double> parameter_costs(const torch::nn::Sequential& net);

struct MeasureOptions {
  /// Rank 0 measures, all have its figures. Empty: this process measures for itself.
  ProcessGroup process_group = {};
  int repetitions = 5;  ///< After one that does not count; the fastest does.
};

/// The seconds of a forward and a backward pass of each layer: what balance_stages takes. `sample`
/// is a batch as one micro-batch will be, on the net's device; only rank 0 needs it. Parameters,
/// their gradients, buffers and the CPU's random numbers are as before. Collective with a group.
/// Errors: UsageError for no repetition; else as Work::wait, and what the layers throw.
std::vector<double> measured_costs(const torch::nn::Sequential& net, const at::Tensor& sample,
                                   const MeasureOptions& options = {});

/// Cuts layers of these costs into so many stages, each of one layer or more in a row, so that the
/// dearest stage costs as little as can be, and the others are as equal as that allows. Gives the
/// first layer of each stage but the first; the same on all machines.
/// Errors: UsageError for more stages than layers and for a cost that is negative or no number.
std::vector<std::int64_t> balance_stages(const std::vector<double>& costs, int stages);

}  // namespace lockstep
