#pragma once

#include <vector>

#include "lockstep/comm/backends/shm/all_reduce.h"
#include "lockstep/comm/backends/shm/engine.h"
#include "lockstep/comm/backends/shm/heap.h"
#include "lockstep/comm/backends/shm/tensor_piece.h"
#include "lockstep/comm/internal/backend_factory.h"

namespace lockstep::inline internal {

/// Collectives through shared memory, for 1 to 64 ranks of one machine: CPU tensors, at memory
/// speed and in rank order, so that results are the same bits on every rank and in every run.
/// Calls that differ between ranks are refused on all of them.
///
/// Tensors from allocate_tensor() are reduced where they lie; others are copied through slots.
/// There is no communication thread: see shm::Engine. Works complete in the order of their calls.
/// Threads: any. Lifetime: tensors from allocate_tensor may outlive the backend.
/// Errors: as shm::Engine; UsageError for tensors that it cannot take.
class ShmBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  ShmBackend(std::unique_ptr<shm::Engine> engine, std::chrono::milliseconds timeout);

  /// As allreduce, from `input` into `output`. Where `output` lies in memory of allocateTensor, all
  /// ranks promise that theirs does: see shm::make_all_reduce. Dtypes that differ and options: as
  /// ProcessGroup::all_reduce_into has checked them.
  WorkPtr all_reduce_into(const at::Tensor& output, const at::Tensor& input,
                          const ReduceIntoOptions& options, std::chrono::milliseconds timeout);
  /// The next collective is compared with the others' by this name, too.
  void name_next_call(std::string_view name);
  /// Whether the tensor lies in memory of allocateTensor, without gaps.
  bool is_shared(const at::Tensor& tensor) const;

  shm::Engine& engine() { return *engine_; }

  const std::string getBackendName() const override { return "shm"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  void abort() override { engine_->abort(); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int target, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  using Piece = shm::Piece;
  WorkPtr start_all_to_all(const std::vector<Piece>& outputs, const std::vector<Piece>& inputs,
                           Tensors tensors, std::chrono::milliseconds timeout);
  WorkPtr start_all_gather(const std::vector<Piece>& outputs, const Piece& input, Tensors tensors,
                           std::chrono::milliseconds timeout);
  WorkPtr start_reduce_scatter(const Piece& output, const std::vector<Piece>& inputs,
                               const c10d::ReduceOp& op, Tensors tensors,
                               std::chrono::milliseconds timeout);
  WorkPtr start(const char* name, std::unique_ptr<shm::Operation> operation, Tensors tensors,
                std::chrono::milliseconds timeout);
  WorkPtr start_message(shm::Message::Direction direction, Tensors& tensors, int peer, int tag);
  Reduction reduction(Element element, ReduceOp op) const;
  std::chrono::milliseconds time_allowed(std::chrono::milliseconds timeout) const;

  std::string next_name_;
  const std::unique_ptr<shm::Engine> engine_;
  const std::shared_ptr<shm::Heap> heap_;
  std::chrono::milliseconds timeout_;
};

/// Connects the ranks of a group of which those of `config` may be a part: errors call them by
/// `numbers` where it is not empty.
/// Errors: BackendUnavailable, on all ranks, when they cannot share memory; as Work::wait.
c10::intrusive_ptr<ShmBackend> connect_shm_backend(const BackendConfig& config,
                                                   const std::vector<int>& numbers = {});

/// Errors: as connect_shm_backend.
BackendInstance make_shm_backend(const BackendConfig& config);

/// The CPU.
c10::Device shm_device(int local_rank);

}  // namespace lockstep::inline internal
