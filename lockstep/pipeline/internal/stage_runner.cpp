#include "lockstep/pipeline/internal/stage_runner.h"

#include <cstddef>

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/collective_backward.h"

namespace lockstep::inline internal {

StageRunner::StageRunner(std::vector<torch::nn::Sequential> chunks, int rank, int ranks,
                         c10::Device device)
    : chunks_(std::move(chunks)), rank_(rank), ranks_(ranks), device_(device) {
  for (auto& chunk : chunks_) chunk->to(device_);
}

void StageRunner::run(const PipelineAction& action, PipelinePass& pass, StageLink& link) {
  if (action.kind == PipelineAction::Kind::kForward) {
    run_forward(action.chunk, action.micro_batch, pass, link);
  } else {
    run_backward(action.chunk, action.micro_batch, link);
  }
}

void StageRunner::run_forward(int chunk, int micro_batch, PipelinePass& pass, StageLink& link) {
  const int stage = stage_of(chunk);
  const auto number = static_cast<std::size_t>(micro_batch);
  at::Tensor input;
  if (stage == 0) {
    input = pass.inputs[number].detach().to(device_);
  } else {
    const StageTensor received = link.receive({.kind = StageMessage::Kind::kActivations,
                                               .target_stage = stage,
                                               .micro_batch = micro_batch});
    input = received.tensor.to(device_);
    input.requires_grad_(pass.with_backward && received.requires_grad);
  }
  at::Tensor output = chunks_[static_cast<std::size_t>(chunk)]->forward(input);
  if (!is_last(stage)) {
    link.send({.kind = StageMessage::Kind::kActivations,
               .target_stage = stage + 1,
               .micro_batch = micro_batch},
              {.tensor = output.detach().contiguous(), .requires_grad = output.requires_grad()});
  } else if (pass.loss == nullptr) {
    pass.outputs[number] = output.detach();
  }
  const bool has_loss = is_last(stage) && pass.loss != nullptr;
  const at::Tensor loss = has_loss ? weighted_loss(output, micro_batch, pass) : at::Tensor();
  if (!pass.with_backward) return;
  kept_[{chunk, micro_batch}] = {.input = input,
                                 .output = loss.defined() ? loss : output,
                                 .is_left_out = has_loss && !loss.defined()};
}

at::Tensor StageRunner::weighted_loss(const at::Tensor& outputs, int micro_batch,
                                      PipelinePass& pass) const {
  const auto number = static_cast<std::size_t>(micro_batch);
  if (!pass.loss_sum.defined()) pass.loss_sum = at::zeros({}, outputs.options().dtype(at::kDouble));
  // A mean over nothing may be no number, which no weight of 0 would take back.
  if (pass.weights[number] == 0) return {};
  const at::Tensor loss = (*pass.loss)(outputs, pass.targets[number].to(device_));
  if (!loss.defined() || loss.numel() != 1) {
    throw UsageError(concat("pipeline: the loss of micro-batch ", micro_batch, " has ",
                            loss.defined() ? loss.numel() : 0,
                            " elements; it must be one number, the mean over the samples"));
  }
  if (pass.with_backward && !loss.requires_grad()) {
    throw UsageError(concat("pipeline: the loss of micro-batch ", micro_batch,
                            " has no gradient; nothing that leads to it is trained"));
  }
  const at::Tensor weighted = loss * pass.weights[number];
  pass.loss_sum = pass.loss_sum + weighted.detach().to(at::kDouble);
  return weighted;
}

void StageRunner::run_backward(int chunk, int micro_batch, StageLink& link) {
  const int stage = stage_of(chunk);
  const Kept kept = kept_.extract({chunk, micro_batch}).mapped();
  // Where nothing up to the cut is trained no gradient is expected back.
  if (kept.output.requires_grad()) {
    at::Tensor gradient;
    bool is_left_out = kept.is_left_out;
    if (!is_last(stage)) {
      gradient = link.receive({.kind = StageMessage::Kind::kGradients,
                               .target_stage = stage,
                               .micro_batch = micro_batch})
                     .tensor;
      is_left_out = !gradient.defined();
    }
    // Other replicas wait in layers like SyncBatchNorm, and what they train depends on all samples.
    const bool is_awaited = is_left_out && has_collective_backward(kept.output);
    if (is_awaited) gradient = at::zeros_like(kept.output);
    if (gradient.defined()) gradient = gradient.to(kept.output.device());
    if (!is_left_out || is_awaited) torch::autograd::backward({kept.output}, {gradient});
  }
  // Also without a gradient: the stage before waits for one.
  if (stage == 0 || !kept.input.requires_grad()) return;
  const at::Tensor& sent = kept.input.grad();
  link.send({.kind = StageMessage::Kind::kGradients,
             .target_stage = stage - 1,
             .micro_batch = micro_batch},
            {.tensor = sent.defined() ? sent.contiguous() : at::Tensor()});
}

}  // namespace lockstep::inline internal
