#pragma once

#include "lockstep/comm/internal/native_backend.h"

namespace lockstep::inline internal {

/// Adapts a c10d::Backend. c10d has no deadline of messages and no names of calls: messages use the
/// backend's timeout unless a derived class overrides send and recv; names are ignored.
/// Threads: as NativeBackend.
/// Lifetime: as NativeBackend.
/// Errors: as NativeBackend.
class C10dBackend : public NativeBackend {
 public:
  explicit C10dBackend(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}

  c10d::Backend& c10d() override { return *backend_; }

  WorkPtr broadcast(const Tensor& tensor, int source, const CallTerms& terms) override;
  WorkPtr all_reduce(const Tensor& tensor, ReduceOp op, const CallTerms& terms) override;
  WorkPtr reduce(const Tensor& tensor, int target, ReduceOp op, const CallTerms& terms) override;
  WorkPtr all_gather(const Tensors& outputs, const Tensor& input, const CallTerms& terms) override;
  WorkPtr all_gather_into_tensor(const Tensor& output, const Tensor& input,
                                 const CallTerms& terms) override;
  WorkPtr gather(const Tensors& outputs, const Tensor& input, int target,
                 const CallTerms& terms) override;
  WorkPtr scatter(const Tensor& output, const Tensors& inputs, int source,
                  const CallTerms& terms) override;
  WorkPtr reduce_scatter(const Tensor& output, const Tensors& inputs, ReduceOp op,
                         const CallTerms& terms) override;
  WorkPtr reduce_scatter_tensor(const Tensor& output, const Tensor& input, ReduceOp op,
                                const CallTerms& terms) override;
  WorkPtr all_to_all(const Tensors& outputs, const Tensors& inputs,
                     const CallTerms& terms) override;
  WorkPtr all_to_all_single(const Tensor& output, const Tensor& input,
                            const std::vector<std::int64_t>& output_splits,
                            const std::vector<std::int64_t>& input_splits,
                            const CallTerms& terms) override;
  WorkPtr barrier(const CallTerms& terms) override;
  WorkPtr send(const Tensor& tensor, int target, int tag, const CallTerms& terms) override;
  WorkPtr recv(const Tensor& tensor, int source, int tag, const CallTerms& terms) override;
  WorkPtr recv_from_any(const Tensor& tensor, int tag, const CallTerms& terms) override;

 protected:
  /// The work that the caller of a collective gets for the backend's work.
  virtual WorkPtr wrap(WorkPtr work, const CallTerms&) { return work; }

 private:
  const c10::intrusive_ptr<c10d::Backend> backend_;
};

}  // namespace lockstep::inline internal
