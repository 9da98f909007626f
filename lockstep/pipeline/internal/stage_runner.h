#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include "lockstep/pipeline/internal/stage_link.h"
#include "lockstep/pipeline/schedule.h"

namespace lockstep::inline internal {

/// A training step, or a forward pass, over all micro-batches.
struct PipelinePass {
  using Loss = std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& targets)>;

  std::vector<at::Tensor> inputs = {};   ///< by micro-batch, on the first stage
  std::vector<at::Tensor> targets = {};  ///< by micro-batch, on the last stage, with `loss`
  std::vector<double> weights = {};      ///< factors of the losses; 0: left out
  const Loss* loss = nullptr;            ///< null: outputs are kept
  bool with_backward = false;

  /// Results, on the last stage.
  at::Tensor loss_sum = {};
  std::vector<at::Tensor> outputs = {};
};

/// Runs the passes of one rank's stages, and keeps what backward needs from forward.
/// Threads: one.
class StageRunner {
 public:
  StageRunner(std::vector<torch::nn::Sequential> chunks, int rank, int ranks, c10::Device device);

  /// Runs one action.
  /// Errors: UsageError for a loss of more than one element; what layers, loss and link throw.
  void run(const PipelineAction& action, PipelinePass& pass, StageLink& link);
  /// Discards what a failed step has kept.
  void forget() { kept_.clear(); }

 private:
  struct Kept {
    at::Tensor input;
    at::Tensor output;         // of the last stage the weighted loss, where there is one
    bool is_left_out = false;  // there is none
  };

  void run_forward(int chunk, int micro_batch, PipelinePass& pass, StageLink& link);
  void run_backward(int chunk, int micro_batch, StageLink& link);
  at::Tensor weighted_loss(const at::Tensor& outputs, int micro_batch, PipelinePass& pass) const;
  int stage_of(int chunk) const { return chunk * ranks_ + rank_; }
  bool is_last(int stage) const { return stage == static_cast<int>(chunks_.size()) * ranks_ - 1; }

  std::vector<torch::nn::Sequential> chunks_;
  int rank_;
  int ranks_;
  c10::Device device_;
  std::map<std::pair<int, int>, Kept> kept_;  // by chunk and micro-batch
};

}  // namespace lockstep::inline internal
