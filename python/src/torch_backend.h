#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/FunctionRef.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/process_group.h"
#include "python/src/own_process.h"
#include "python/src/staging.h"
#include "python/src/torch_work.h"

namespace lockstep::python {

/// The backend `lockstep` of torch.distributed: a lockstep::ProcessGroup behind all of c10d's
/// interface that ProcessGroupGloo has, for CPU tensors of any dtype and strides.
/// Threads: any, with or without the GIL. Lifetime: works keep what they need of it.
/// Errors: UsageError, which Python shows as RuntimeError; torch.distributed.DistBackendError for
/// timeouts and lost peers. After the latter the group is of no further use.
class TorchBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  TorchBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
               c10::intrusive_ptr<Options> options);

  const ProcessGroup& group() const { return group_; }
  const std::string getBackendName() const override { return "lockstep"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}  // it begins at 0 on all ranks
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }
  c10d::ErrorType getError() override { return error_->load(); }
  void abort() override;
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int target, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  using Start = c10::function_ref<Work(const CollectiveOptions&)>;
  using StartPair = c10::function_ref<Work(const at::Tensor& target, const at::Tensor& source,
                                           const CollectiveOptions&)>;
  using Then = std::function<void()>;  ///< after the results are written; may be empty
  /// What a call of c10d is, beside its tensors.
  struct Kind {
    c10d::OpType op_type;
    const char* title;
    bool is_async = true;
    bool is_message = false;
    std::optional<int> source = std::nullopt;  ///< of a receive from one rank
  };
  /// How the calls of run_pairs use their tensors.
  struct PairUse {
    Staging::Use use;
    ReduceOp op = ReduceOp::kSum;
  };
  /// Calls between startCoalescing and endCoalescing.
  struct Batch {
    std::vector<c10::intrusive_ptr<TorchWork>> calls;
    bool has_collective = false;
    std::size_t most_calls = 64;  ///< with more, those that have succeeded are dropped
  };

  c10::intrusive_ptr<TorchWork> make_work(const Kind& kind, const Tensors& inputs,
                                          const Tensors& outputs);
  std::shared_ptr<Part> start_part(const Staging& staging, std::chrono::milliseconds timeout,
                                   Start start, const Then& then = {});
  WorkPtr track(c10::intrusive_ptr<TorchWork> work, const Kind& kind);
  /// Returns null, with the results in place, if the call is not asynchronous.
  WorkPtr run(const Kind& kind, const Staging& staging, const Tensors& inputs,
              const Tensors& outputs, std::chrono::milliseconds timeout, Start start,
              const Then& then = {});
  void run_to_end(const Kind& kind, const Staging& staging, const Tensors& inputs,
                  std::chrono::milliseconds timeout, Start start, const Then& then);
  WorkPtr run_pairs(const char* operation, const Kind& kind, const PairUse& use,
                    const Tensors& outputs, const Tensors& inputs,
                    std::chrono::milliseconds timeout, StartPair start);
  bool is_coalescing();
  void add_to_batch(const c10::intrusive_ptr<TorchWork>& work, const Kind& kind);
  void forget_batch();
  std::atomic<std::uint64_t>& counter_of(const Kind& kind) {
    return kind.is_message ? messages_ : sequence_;
  }
  CollectiveOptions collective_options(std::chrono::milliseconds timeout) const;
  int checked_root(const char* operation, std::int64_t rank, std::int64_t tensor) const;
  void check_process(const char* operation) const { process_.check(operation, getRank()); }
  /// In a catch block: as rethrow_for_python, and remembers what getError() says.
  [[noreturn]] void rethrow() const;
  void add_sparse(const at::Tensor& tensor, std::chrono::milliseconds timeout);

  const c10::intrusive_ptr<Options> options_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const ProcessGroup group_;
  const OwnProcess process_;
  std::atomic<std::int64_t> timeout_ms_;
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<std::uint64_t> messages_{0};
  /// Shared with works, which may outlive this.
  const std::shared_ptr<std::atomic<c10d::ErrorType>> error_;
  internal::Mutex batch_mutex_;
  std::optional<Batch> batch_ LOCKSTEP_GUARDED_BY(batch_mutex_);
};

/// Options of an asynchronous call, with the timeout and the name of `options`.
ReduceOptions with_op(const CollectiveOptions& options, ReduceOp op);

}  // namespace lockstep::python
