#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/one_copy/internal/model_copy.h"
#include "tests/fuzz/differential/net.h"

namespace lockstep::differential {

/// One rank's training with Lockstep, as a program would write it.
class Trainee {
 public:
  Trainee(const Plan& plan, const ProcessGroup& group);

  /// `input`: what join() gave; else made here.
  void run_pass(int step, int pass, const at::Tensor& input = {});
  void evaluate(int step);
  /// Returns the norm before; 0 where the plan does not clip.
  double clip();
  void update();

  const std::vector<at::Tensor>& parameters() const { return net_->model.parameters; }
  /// Of each parameter the average, where it was exchanged; else this rank's own. Collective where
  /// ranks have one copy.
  std::vector<at::Tensor> gradients() const { return averaged_gradients_of(parameters()); }
  std::vector<at::Tensor> gradients_after(const PassPlan& pass) const;
  const std::vector<at::Tensor>& taken() const { return taken_; }
  std::vector<at::Tensor> buffers() const { return net_->model.buffers(); }
  const Model& model() const { return net_->model; }
  double gradient_norm() const { return model_.gradient_norm(); }
  DistributedDataParallel<NetImpl>& wrapped() { return model_; }

 private:
  at::Tensor forward(int step, int pass, const at::Tensor& input);
  void backward(const at::Tensor& loss, int step, int pass, bool retain_graph);
  void take_gradients(const at::Tensor& loss);

  const Plan& plan_;
  int rank_;
  Net net_;
  DistributedDataParallel<NetImpl> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  at::Tensor loss_;
  std::vector<at::Tensor> taken_;
};

}  // namespace lockstep::differential
