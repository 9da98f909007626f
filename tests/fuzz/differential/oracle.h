#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tests/fuzz/differential/graph.h"
#include "tests/fuzz/differential/plan.h"

namespace lockstep::differential {

/// All ranks' training in this process: plain LibTorch, none of Lockstep's code. Gradients come
/// from torch::autograd::grad and are added up here, so that nothing shares memory with .grad.
class Oracle {
 public:
  explicit Oracle(const Plan& plan);
  ~Oracle();

  /// The pass's action, its gradients and, where it exchanges, their average.
  void run_pass(int step, int pass);
  /// The plan's clipping; returns the norm before.
  double clip();
  void update();

  /// Of a rank; undefined where it has none.
  const std::vector<at::Tensor>& gradients(int rank) const { return gradients_[rank]; }
  /// What the last pass with takes_gradients gave.
  const std::vector<at::Tensor>& taken(int rank) const { return taken_[rank]; }
  const Model& model(int rank) const { return models_[rank]; }
  enum class Of { kAll, kExchanged };
  /// √Σ squares of all gradients, or of those alone that were exchanged.
  double norm(int rank, Of which) const;
  /// Σ over ranks of |gradient|, which the average in question is a sum of; of each parameter.
  const std::vector<at::Tensor>& magnitudes() const { return magnitudes_; }
  /// Whether the parameter's average is exact but for the size of numbers.
  bool is_exact(std::size_t parameter) const { return is_exact_ && is_whole_[parameter]; }

  /// Goes on with what the rank has, which was compared: rounding does not add up.
  void adopt(int rank, std::size_t parameter, const at::Tensor& gradient, bool is_average);

 private:
  using Gradients = std::vector<at::Tensor>;  // of each parameter

  void act(GradAction action);
  void forward(int step, int pass);
  Gradients own_gradients(int rank, const at::Tensor& loss, bool create_graph) const;
  void backward(int step, int pass);
  void double_backward(std::vector<Gradients>& with_graph);
  void exchange(int step, int pass);
  void share_buffers();
  /// `factor`: of the sum, in the average.
  void note_magnitudes(double factor);
  at::Tensor averaged(std::size_t parameter, int rank, double scale) const;

  const Plan& plan_;
  std::vector<Model> models_;
  std::vector<Gradients> gradients_;
  std::vector<Gradients> taken_;
  std::vector<at::Tensor> losses_;
  std::vector<at::Tensor> inputs_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
  std::vector<at::Tensor> magnitudes_;
  std::vector<bool> is_whole_;  // every rank's part of an average is a multiple of 1/8
  std::vector<bool> is_averaged_;
  std::vector<bool> is_left_out_;  // of the exchanges, by static_graph
  int exchanges_ = 0;
  bool is_exact_ = true;
};

}  // namespace lockstep::differential
