#include "lockstep/comm/backends/mpi/mpi_backend.h"

#include <stdexcept>
#include <thread>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/backends/mpi/mpi_plans.h"
#include "lockstep/comm/backends/mpi/mpi_runtime.h"
#include "lockstep/comm/internal/c10d_backend.h"

namespace lockstep::inline internal {
namespace {

using mpi::MpiWork;
using Tensors = std::vector<at::Tensor>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

// Works on memory: autograd has no part in it.
at::Tensor flat(const at::Tensor& tensor) {
  return tensor.detach().view({-1});
}

Tensors flat(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(flat(tensor));
  return result;
}

class MpiBackend final : public c10d::Backend {
 public:
  MpiBackend(std::shared_ptr<mpi::Communicator> communicator, std::chrono::milliseconds timeout)
      : Backend(communicator->rank(), communicator->size()),
        communicator_(std::move(communicator)),
        timeout_(timeout) {}

  const std::string getBackendName() const override { return "mpi"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void abort() override { communicator_->abort(); }

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return start(options.timeout, [&](auto&) {
      return mpi::plan_broadcast(flat(tensors[0]), static_cast<int>(options.rootRank));
    });
  }

  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return start(options.timeout, [&](auto& communicator) {
      return mpi::plan_all_reduce(communicator, flat(tensors[0]), options.reduceOp);
    });
  }

  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return start(options.timeout, [&](auto& communicator) {
      return mpi::plan_reduce(communicator, flat(tensors[0]), static_cast<int>(options.rootRank),
                              options.reduceOp);
    });
  }

  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override {
    return all_gather(flat(outputs[0]), inputs[0], options.timeout);
  }

  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override {
    return all_gather(equal_parts(output), input, options.timeout);
  }

  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const c10d::GatherOptions& options) override {
    const bool is_target = getRank() == options.rootRank;
    Tensors sent(ranks());
    sent[options.rootRank] = flat(inputs[0]);
    return exchange(is_target ? flat(outputs[0]) : Tensors(ranks()), sent, options.timeout);
  }

  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ScatterOptions& options) override {
    const bool is_source = getRank() == options.rootRank;
    Tensors received(ranks());
    received[options.rootRank] = flat(outputs[0]);
    return exchange(received, is_source ? flat(inputs[0]) : Tensors(ranks()), options.timeout);
  }

  WorkPointer reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ReduceScatterOptions& options) override {
    return reduce_scatter(outputs[0], flat(inputs[0]), options);
  }

  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override {
    return reduce_scatter(output, equal_parts(input), options);
  }

  WorkPointer alltoall(Tensors& outputs, Tensors& inputs,
                       const c10d::AllToAllOptions& options) override {
    return exchange(flat(outputs), flat(inputs), options.timeout);
  }

  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<std::int64_t>& output_splits,
                            std::vector<std::int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override {
    return exchange(parts(output, output_splits), parts(input, input_splits), options.timeout);
  }

  WorkPointer barrier(const c10d::BarrierOptions& options) override {
    return start(options.timeout, [](auto&) { return mpi::plan_barrier(); });
  }

  WorkPointer send(Tensors& tensors, int target, int tag) override {
    return start(timeout_, [&](auto& communicator) {
      return mpi::plan_send(communicator, flat(tensors[0]), target, tag);
    });
  }

  WorkPointer recv(Tensors& tensors, int source, int tag) override {
    return start(timeout_, [&](auto& communicator) {
      return mpi::plan_receive(communicator, flat(tensors[0]), source, tag);
    });
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(getSize()); }

  template <class MakePlan>
  WorkPointer start(std::chrono::milliseconds timeout, MakePlan&& make_plan) {
    if (communicator_->aborted()) throw std::runtime_error("the group was aborted by this rank");
    MpiWork::Plan plan;
    {
      const auto locked = mpi::lock();
      plan = make_plan(*communicator_);
    }
    return MpiWork::start(communicator_, std::move(plan),
                          timeout > kNoTimeout ? timeout : timeout_);
  }

  WorkPointer exchange(const Tensors& outputs, const Tensors& inputs,
                       std::chrono::milliseconds timeout) {
    return start(timeout, [&](auto& communicator) {
      return mpi::plan_exchange(communicator, outputs, inputs);
    });
  }

  WorkPointer all_gather(const Tensors& outputs, const at::Tensor& input,
                         std::chrono::milliseconds timeout) {
    return exchange(outputs, Tensors(ranks(), flat(input)), timeout);
  }

  WorkPointer reduce_scatter(const at::Tensor& output, const Tensors& inputs,
                             const c10d::ReduceScatterOptions& options) {
    return start(options.timeout, [&](auto& communicator) {
      return mpi::plan_reduce_scatter(communicator, flat(output), inputs, options.reduceOp);
    });
  }

  Tensors equal_parts(const at::Tensor& tensor) const {
    const std::int64_t each = tensor.numel() / getSize();
    Tensors result;
    for (int rank = 0; rank < getSize(); ++rank) {
      result.push_back(flat(tensor).narrow(0, rank * each, each));
    }
    return result;
  }

  // Along dimension 0; no splits stand for equal parts.
  Tensors parts(const at::Tensor& tensor, const std::vector<std::int64_t>& splits) const {
    if (splits.empty()) return equal_parts(tensor);
    Tensors result;
    std::int64_t first = 0;
    for (const std::int64_t rows : splits) {
      result.push_back(flat(tensor.detach().narrow(0, first, rows)));
      first += rows;
    }
    return result;
  }

  const std::shared_ptr<mpi::Communicator> communicator_;
  std::chrono::milliseconds timeout_;
};

void require_world(int world_size) {
  if (mpi::world_size() >= world_size) return;
  throw UsageError(concat(
      "backend mpi: MPI sees ", mpi::world_size(), " of the ", world_size,
      " processes of the job; start the program by the mpirun of the MPI it was built with, or by "
      "srun --mpi=..., or choose another backend"));
}

// The ranks in MPI_COMM_WORLD of the group's members, told each other through the store. Whoever is
// past it knows that all members are about to make the communicator.
std::vector<int> meet(const BackendConfig& config, int our_world_rank) {
  const auto key = [](int rank) { return concat("mpi/", rank); };
  config.store->set(key(config.rank), std::to_string(our_world_rank));
  std::vector<std::string> keys;
  for (int rank = 0; rank < config.world_size; ++rank) keys.push_back(key(rank));
  config.store->wait(keys, config.connect_timeout);
  std::vector<int> world_ranks;
  for (const std::string& each : keys) {
    world_ranks.push_back(std::stoi(config.store->get_to_str(each)));
  }
  return world_ranks;
}

}  // namespace

std::shared_ptr<NativeBackend> make_mpi_backend(const BackendConfig& config) {
  int our_world_rank = 0;
  {
    const auto locked = mpi::lock();
    mpi::ensure_running();
    require_world(config.world_size);
    our_world_rank = mpi::world_rank();
  }
  const auto world_ranks = meet(config, our_world_rank);
  std::shared_ptr<mpi::Communicator> communicator;
  {
    const auto locked = mpi::lock();
    communicator = std::make_shared<mpi::Communicator>(world_ranks);
  }
  return std::make_shared<C10dBackend>(
      c10::make_intrusive<MpiBackend>(communicator, config.timeout));
}

c10::Device mpi_device(int) {
  return c10::kCPU;
}

MpiLibrary mpi_library() {
#ifdef OPEN_MPI
  return MpiLibrary::kOpenMpi;
#else
  return MpiLibrary::kOther;
#endif
}

std::string broadcast_by_mpi(std::string text, int world_size, const Deadline& deadline) {
  std::vector<int> everyone;
  std::shared_ptr<mpi::Communicator> communicator;
  {
    const auto locked = mpi::lock();
    mpi::ensure_running();
    require_world(world_size);
    for (int rank = 0; rank < world_size; ++rank) everyone.push_back(rank);
    communicator = std::make_shared<mpi::Communicator>(everyone);
  }
  constexpr std::int64_t kLongestText = 512;
  at::Tensor buffer = at::empty({kLongestText}, at::kByte).zero_();
  text.copy(static_cast<char*>(buffer.mutable_data_ptr()), kLongestText - 1);
  MpiWork::start(communicator, mpi::plan_broadcast(buffer, 0), deadline.remaining())
      ->wait(kNoTimeout);
  return static_cast<const char*>(buffer.const_data_ptr());
}

}  // namespace lockstep::inline internal
