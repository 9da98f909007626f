#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/backends/shm/all_reduce.h"
#include "lockstep/comm/backends/shm/engine.h"
#include "lockstep/comm/backends/shm/tensor_piece.h"
#include "lockstep/comm/internal/backend_factory.h"
#include "lockstep/comm/internal/native_backend.h"
#include "lockstep/os/memory/memory_heap.h"

namespace lockstep::inline internal {

/// Collectives of CPU tensors through shared memory, for 1 to 64 ranks of one machine, at memory
/// bandwidth and in rank order: the same bits on every rank and in every run. Calls that differ
/// between ranks are refused on all of them.
///
/// Tensors from allocate_tensor() are reduced in place; others are copied through slots. There is
/// no communication thread: see shm::Engine. Works complete in the order of their calls. The
/// methods of c10d::Backend (shm_c10d.cpp) call those of NativeBackend.
/// Threads: any.
/// Lifetime: tensors from allocate_tensor may outlive the backend.
/// Errors: as shm::Engine; UsageError for tensors that it does not support.
class ShmBackend final : public c10d::Backend, public NativeBackend, public SharedMemory {
 public:
  ShmBackend(std::unique_ptr<shm::Engine> engine, std::chrono::milliseconds timeout);

  shm::Engine& engine() { return *engine_; }

  c10d::Backend& c10d() override { return *this; }
  bool compares_calls() const override { return true; }
  std::int64_t bucket_bytes() const override { return bucket_bytes_; }
  SharedMemory* shared_memory() override { return this; }

  bool is_shared(const Tensor& tensor) const override;
  std::optional<std::uint64_t> offset_of(const Tensor& tensor) const override;
  std::byte* address_of(std::uint64_t offset, std::uint64_t bytes) override;
  WorkPtr all_reduce_into(const Tensor& output, const Tensor& input,
                          const ScaledReduction& reduction, const CallTerms& terms) override;

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
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  using Piece = shm::Piece;
  WorkPtr start_all_to_all(const std::vector<Piece>& outputs, const std::vector<Piece>& inputs,
                           Tensors tensors, const CallTerms& terms);
  WorkPtr start_all_gather(const std::vector<Piece>& outputs, const Piece& input, Tensors tensors,
                           const CallTerms& terms);
  WorkPtr start_reduce_scatter(const Piece& output, const std::vector<Piece>& inputs, ReduceOp op,
                               Tensors tensors, const CallTerms& terms);
  WorkPtr start(const char* name, std::unique_ptr<shm::Operation> operation, Tensors tensors,
                const CallTerms& terms);
  WorkPtr start_message(shm::Message::Direction direction, const Tensor& tensor, int peer, int tag,
                        const CallTerms& terms);
  Reduction reduction(Element element, ReduceOp op) const;
  std::chrono::milliseconds time_allowed(std::chrono::milliseconds timeout) const;

  const std::unique_ptr<shm::Engine> engine_;
  /// The same on all ranks, although each later watches the distance of its peers itself.
  const std::int64_t bucket_bytes_;
  const std::shared_ptr<MemoryHeap> heap_;
  std::chrono::milliseconds timeout_;
};

/// Connects the ranks of `config`. `numbers`: ranks as errors name them, if they are part of a
/// larger group.
/// Errors: BackendUnavailable, on all ranks, if they cannot share memory; as Work::wait.
c10::intrusive_ptr<ShmBackend> connect_shm_backend(const BackendConfig& config,
                                                   const std::vector<int>& numbers = {});

/// Connects the ranks of `config`.
/// Errors: as connect_shm_backend.
std::shared_ptr<NativeBackend> make_shm_backend(const BackendConfig& config);

/// The CPU.
c10::Device shm_device(int local_rank);

}  // namespace lockstep::inline internal
