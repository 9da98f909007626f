#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/fully_shard/fully_shard.h"
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

  /// Fully sharded: copies of the whole.
  const std::vector<at::Tensor>& parameters() const {
    return sharded_ ? whole_ : net_->model.parameters;
  }
  /// Of each parameter the average, where it was exchanged; else this rank's own. Collective where
  /// ranks have one copy.
  std::vector<at::Tensor> gradients() const;
  std::vector<at::Tensor> gradients_after(const PassPlan& pass) const;
  const std::vector<at::Tensor>& taken() const { return taken_; }
  std::vector<at::Tensor> buffers() const { return net_->model.buffers(); }
  const Model& model() const { return net_->model; }
  double gradient_norm() const {
    return sharded_ ? sharded_->gradient_norm() : replica_->gradient_norm();
  }
  DistributedDataParallel<NetImpl>& wrapped() { return *replica_; }

 private:
  at::Tensor forward(int step, int pass, const at::Tensor& input);
  void backward(const at::Tensor& loss, int step, int pass, bool retain_graph);
  void take_gradients(const at::Tensor& loss);
  void run_sharded_pass(int step, int pass, const at::Tensor& input);
  at::Tensor output_of(const at::Tensor& input, int step);
  std::vector<at::Tensor> updated() const;
  void gather_whole();
  double clip_gradients();

  const Plan& plan_;
  int rank_;
  Net net_;
  std::optional<DistributedDataParallel<NetImpl>> replica_;
  std::optional<FullySharded<NetImpl>> sharded_;  ///< in its place
  std::vector<at::Tensor> whole_;                 ///< fully sharded: of all ranks
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  at::Tensor loss_;
  std::vector<at::Tensor> taken_;
};

}  // namespace lockstep::differential
