#pragma once

#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep::gloo_backend {

/// Whether the reduction is one of floating-point numbers that keeps or loses a NaN by the order in
/// which Gloo compares: MIN and MAX.
bool needs_keys(const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op);

/// Integers that are ordered as the numbers are, with NaN before all for MIN and after all for MAX,
/// so that the same reduction of the integers gives NaN where any rank has one.
at::Tensor ordered_keys(const at::Tensor& values, const c10d::ReduceOp& op);
std::vector<at::Tensor> ordered_keys(const std::vector<at::Tensor>& values,
                                     const c10d::ReduceOp& op);

/// A reduction of keys, whose results become numbers in `outputs` for the first that finds it
/// complete. Threads: any. Errors: those of the reduction.
class KeyedWork final : public c10d::Work {
 public:
  KeyedWork(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> keys,
            std::vector<at::Tensor> outputs);

  bool isCompleted() override;
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  /// Complete when it returns.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void write_outputs();

  const c10::intrusive_ptr<c10d::Work> work_;
  const std::vector<at::Tensor> keys_;
  const std::vector<at::Tensor> outputs_;
  std::once_flag written_;
};

}  // namespace lockstep::gloo_backend
