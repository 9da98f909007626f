#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/backends/hierarchical/machines.h"
#include "lockstep/comm/backends/hierarchical/pieces.h"
#include "lockstep/comm/backends/hierarchical/pipeline.h"
#include "lockstep/comm/backends/shm/shm_backend.h"
#include "lockstep/comm/internal/backend_factory.h"
#include "lockstep/comm/internal/native_backend.h"

namespace lockstep::inline internal {

/// Collectives of CPU tensors over several machines, of which at least one has several ranks.
/// All-reduces, reduce-scatters, all-gathers and broadcasts use shared memory within a machine and
/// Gloo between machines. Each local rank exchanges its own share, so that a machine receives each
/// byte once; see hierarchical::Pipeline. Ranks are summed in order within a machine, machines in
/// order: a reduce-scatter gives the bits of an all-reduce, on all ranks and in every run. Messages
/// between ranks of one machine use its shared memory. Everything else is Gloo's, over all ranks.
///
/// Tensors from allocateTensor() are in the machine's shared memory. There is no communication
/// thread except Gloo's. The collectives of the pipeline complete in the order of their calls, and
/// so do Gloo's.
/// Threads: any.
/// Lifetime: tensors from allocateTensor may outlive the backend.
/// Errors: as hierarchical::Pipeline; UsageError for tensors that it does not support.
class HierarchicalBackend final : public c10d::Backend, public SeveralMachines {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// Groups that it uses: of this machine's ranks, of all ranks, and, if this rank has a share, of
  /// the ranks with the same local index.
  struct Parts {
    hierarchical::Machines machines;
    c10::intrusive_ptr<ShmBackend> reduce = {};
    c10::intrusive_ptr<ShmBackend> gather = {};
    std::shared_ptr<NativeBackend> flat = {};
    std::shared_ptr<NativeBackend> scatter = {};
    std::shared_ptr<NativeBackend> spread = {};
    c10::intrusive_ptr<c10d::Store> store = {};  ///< for FailureNote
  };

  HierarchicalBackend(Parts parts, int rank, int world_size, std::chrono::milliseconds timeout);

  /// Whether Gloo has a running call.
  bool is_busy() const;

  const std::string getBackendName() const override { return "hierarchical"; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  void abort() override;

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr send(Tensors& tensors, int target, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr send(const at::Tensor& tensor, int target, int tag, const CallTerms& terms);
  WorkPtr recv(const at::Tensor& tensor, int source, int tag, const CallTerms& terms);
  /// Over Gloo, as the pipeline would run it behind all that is under way.
  WorkPtr gather_for_check(const at::Tensor& output, const at::Tensor& input,
                           const CallTerms& terms);
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
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  const std::vector<std::vector<int>>& ranks_by_machine() const override {
    return parts_.machines.ranks;
  }
  WorkPtr barrier_of_machine(const CallTerms& terms) override;
  WorkPtr sum_over_machines(const at::Tensor& tensor, const CallTerms& terms) override;

 private:
  WorkPtr start(const char* name, hierarchical::Pieces pieces, Tensors tensors,
                std::chrono::milliseconds timeout);
  WorkPtr start_all_gather(const std::vector<shm::Piece>& outputs, Tensors tensors,
                           std::chrono::milliseconds timeout);
  WorkPtr start_reduce_scatter(const std::vector<shm::Piece>& inputs, Tensors tensors,
                               const c10d::ReduceScatterOptions& options);
  WorkPtr part_work(WorkPtr work);
  WorkPtr message_work(WorkPtr work);
  /// Index of a rank among those of this machine; -1 for ranks of other machines.
  int local_index_of(int rank) const;
  void abort_parts();
  c10d::Backend& flat() { return parts_.flat->c10d(); }

  Parts parts_;
  std::chrono::milliseconds timeout_;
  const std::shared_ptr<hierarchical::Signal> signal_;
  const std::unique_ptr<hierarchical::ShareExchange> exchange_;  ///< null if it has no share
  const hierarchical::Site site_;
  hierarchical::Pipeline pipeline_;
};

/// The backend of a group: shm if all ranks share memory, gloo if no two do.
/// Errors: BackendUnavailable, on all ranks, if the ranks of a machine cannot share memory; as
/// Work::wait.
std::shared_ptr<NativeBackend> make_hierarchical_backend(const BackendConfig& config);

/// The CPU.
c10::Device hierarchical_device(int local_rank);

}  // namespace lockstep::inline internal
