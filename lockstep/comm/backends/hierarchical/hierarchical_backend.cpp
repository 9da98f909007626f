#include "lockstep/comm/backends/hierarchical/hierarchical_backend.h"

#include <algorithm>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/backends/flat_work.h"
#include "lockstep/comm/backends/gloo/gloo_backend.h"
#include "lockstep/comm/backends/hierarchical/hierarchical_work.h"
#include "lockstep/comm/backends/task_work.h"
#include "lockstep/comm/internal/c10d_backend.h"
#include "lockstep/comm/internal/store_wait.h"
#include "lockstep/comm/internal/watched_store.h"

namespace lockstep::inline internal {
namespace {

using hierarchical::Machines;

c10::intrusive_ptr<c10d::Store> keys_of(const BackendConfig& config, const std::string& part) {
  return c10::make_intrusive<c10d::PrefixStore>("hierarchical/" + part, config.store);
}

c10::intrusive_ptr<ShmBackend> connect_machine(const BackendConfig& config,
                                               const Machines& machines, const char* part) {
  BackendConfig local = config;
  local.store = keys_of(config, concat("machine/", machines.machine, "/", part));
  local.rank = machines.local_index;
  local.world_size = static_cast<int>(machines.local_ranks().size());
  return connect_shm_backend(local, machines.local_ranks());
}

std::shared_ptr<NativeBackend> connect_partners(const BackendConfig& config,
                                                const Machines& machines, const char* part) {
  BackendConfig partners = config;
  partners.store = keys_of(config, concat("share/", machines.local_index, "/", part));
  partners.rank = machines.machine;
  partners.world_size = machines.count;
  return make_gloo_backend(partners);
}

std::shared_ptr<NativeBackend> connect_all(const BackendConfig& config) {
  BackendConfig all = config;
  all.store = keys_of(config, "all");
  return make_gloo_backend(all);
}

// Every rank says how it went on its machine, and hears how it went on the others.
void agree(const BackendConfig& config, const std::string& outcome) {
  const auto store = watched(keys_of(config, "ready"), config.while_waiting);
  store->set(std::to_string(config.rank), outcome);
  std::vector<std::string> keys;
  for (int rank = 0; rank < config.world_size; ++rank) keys.push_back(std::to_string(rank));
  const auto missing = wait_for_keys(*store, keys, Deadline::after(config.connect_timeout));
  if (!missing.empty()) {
    throw TimeoutError(concat("connecting group '", config.group_name, "' on rank ", config.rank,
                              ": rank", missing.size() > 1 ? "s " : " ", join_numbers(missing),
                              " did not join in time; check their logs"),
                       {.operation = "connect",
                        .group = config.group_name,
                        .own_rank = config.rank,
                        .timeout = config.connect_timeout,
                        .ranks = missing});
  }
  for (const std::string& key : keys) {
    const std::string theirs = store->get_to_str(key);
    if (theirs != "ok") throw BackendUnavailable(theirs);
  }
}

void connect_own_machine(const BackendConfig& config, HierarchicalBackend::Parts& parts) {
  std::string outcome = "ok";
  try {
    if (parts.machines.most_ranks > shm::kMostRanks) {
      throw BackendUnavailable(concat("group '", config.group_name, "' has ",
                                      parts.machines.most_ranks, " ranks on a machine; at most ",
                                      shm::kMostRanks, " can share memory"));
    }
    constexpr auto kMostRanks = static_cast<int>(shm::kSlotBytes / shm::kLineBytes);
    if (config.world_size > kMostRanks) {  // A reduce-scatter has a part of each slot for each.
      throw BackendUnavailable(concat("group '", config.group_name, "' has ", config.world_size,
                                      " ranks; at most ", kMostRanks, " over hierarchical"));
    }
    parts.reduce = connect_machine(config, parts.machines, "reduce");
    parts.gather = connect_machine(config, parts.machines, "gather");
  } catch (const BackendUnavailable& error) {
    outcome = error.what();
  }
  agree(config, outcome);
}

class NativeHierarchical final : public C10dBackend {
 public:
  explicit NativeHierarchical(const c10::intrusive_ptr<HierarchicalBackend>& backend)
      : C10dBackend(backend), backend_(*backend) {}

  bool is_busy() override { return backend_.is_busy(); }
  SeveralMachines* several_machines() override { return &backend_; }

  WorkPtr send(const Tensor& tensor, int target, int tag, const CallTerms& terms) override {
    return backend_.send(tensor, target, tag, terms);
  }
  WorkPtr recv(const Tensor& tensor, int source, int tag, const CallTerms& terms) override {
    return backend_.recv(tensor, source, tag, terms);
  }
  WorkPtr gather_for_check(const Tensor& output, const Tensor& input,
                           const CallTerms& terms) override {
    return backend_.gather_for_check(output, input, terms);
  }

 private:
  HierarchicalBackend& backend_;
};

}  // namespace

HierarchicalBackend::HierarchicalBackend(Parts parts, int rank, int world_size,
                                         std::chrono::milliseconds timeout)
    : Backend(rank, world_size),
      parts_(std::move(parts)),
      timeout_(timeout),
      signal_(std::make_shared<hierarchical::Signal>()),
      exchange_(parts_.machines.has_share()
                    ? std::make_unique<hierarchical::ShareExchange>(parts_.machines, parts_.scatter,
                                                                    parts_.spread, signal_)
                    : nullptr),
      site_{.machines = parts_.machines,
            .rank = rank,
            .ranks = world_size,
            .exchange = exchange_.get(),
            .all_gather = hierarchical::plan_all_gather(parts_.machines),
            .reduce_scatter = hierarchical::plan_reduce_scatter(parts_.machines)},
      pipeline_({.reduce = parts_.reduce->engine(),
                 .gather = parts_.gather->engine(),
                 .exchange = exchange_.get(),
                 .signal = signal_,
                 .note = hierarchical::FailureNote(parts_.store, rank),
                 .abort = [this] { abort_parts(); }}) {}

bool HierarchicalBackend::is_busy() const {
  const auto busy = [](const std::shared_ptr<NativeBackend>& part) {
    return part && part->is_busy();
  };
  return busy(parts_.flat) || busy(parts_.scatter) || busy(parts_.spread);
}

void HierarchicalBackend::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  parts_.reduce->setTimeout(timeout);
  flat().setTimeout(timeout);
}

bool HierarchicalBackend::supportsTensorAlloc(c10::DeviceIndex) {
  return true;
}

at::Tensor HierarchicalBackend::allocateTensor(long size, at::TensorOptions options) {
  return parts_.reduce->allocateTensor(size, options);
}

void HierarchicalBackend::abort() {
  abort_parts();
}

void HierarchicalBackend::abort_parts() {
  parts_.reduce->abort();
  parts_.gather->abort();
  for (const auto& part : {parts_.flat, parts_.scatter, parts_.spread}) {
    if (part) part->c10d().abort();
  }
}

HierarchicalBackend::WorkPtr HierarchicalBackend::start(const char* name,
                                                        hierarchical::Pieces pieces,
                                                        Tensors tensors,
                                                        std::chrono::milliseconds timeout) {
  auto task = pipeline_.start(name, std::move(pieces), std::move(tensors),
                              timeout > kNoTimeout ? timeout : timeout_);
  return c10::make_intrusive<TaskWork<hierarchical::Pipeline, hierarchical::Collective>>(
      *this, pipeline_, std::move(task));
}

HierarchicalBackend::WorkPtr HierarchicalBackend::allreduce(Tensors& tensors,
                                                            const c10d::AllreduceOptions& options) {
  const shm::Piece piece = shm::piece_of(shm::only(tensors));
  const ReduceOp op = shm::op_of(options.reduceOp);
  shm::check_reduction(piece.element, op);
  return start("all_reduce", hierarchical::all_reduce_pieces(site_, tensors[0], op), tensors,
               options.timeout);
}

HierarchicalBackend::WorkPtr HierarchicalBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  // One tensor: what is given twice is reduced once, as by Gloo.
  Tensors flat{flat_copy(tensors)};
  auto work = allreduce(flat, options);
  return flat_work(std::move(work), flat[0], tensors);
}

int HierarchicalBackend::local_index_of(int rank) const {
  const auto& ranks = parts_.machines.local_ranks();
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

HierarchicalBackend::WorkPtr HierarchicalBackend::send(const at::Tensor& tensor, int target,
                                                       int tag, const CallTerms& terms) {
  const int local = local_index_of(target);
  return local >= 0 ? part_work(parts_.reduce->send(tensor, local, tag, terms))
                    : message_work(parts_.flat->send(tensor, target, tag, terms));
}

HierarchicalBackend::WorkPtr HierarchicalBackend::recv(const at::Tensor& tensor, int source,
                                                       int tag, const CallTerms& terms) {
  const int local = local_index_of(source);
  return local >= 0 ? part_work(parts_.reduce->recv(tensor, local, tag, terms))
                    : message_work(parts_.flat->recv(tensor, source, tag, terms));
}

HierarchicalBackend::WorkPtr HierarchicalBackend::send(Tensors& tensors, int target, int tag) {
  return send(shm::only(tensors), target, tag, {.timeout = timeout_});
}

HierarchicalBackend::WorkPtr HierarchicalBackend::recv(Tensors& tensors, int source, int tag) {
  return recv(shm::only(tensors), source, tag, {.timeout = timeout_});
}

HierarchicalBackend::WorkPtr HierarchicalBackend::gather_for_check(const at::Tensor& output,
                                                                   const at::Tensor& input,
                                                                   const CallTerms& terms) {
  return part_work(parts_.flat->all_gather_into_tensor(output, input, terms));
}

HierarchicalBackend::WorkPtr HierarchicalBackend::part_work(WorkPtr work) {
  return c10::make_intrusive<hierarchical::PartWork>(
      c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(this), pipeline_,
      std::move(work));
}

HierarchicalBackend::WorkPtr HierarchicalBackend::message_work(WorkPtr work) {
  return c10::make_intrusive<hierarchical::MessageWork>(
      c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(this), pipeline_,
      std::move(work));
}

HierarchicalBackend::WorkPtr HierarchicalBackend::reduce(Tensors& tensors,
                                                         const c10d::ReduceOptions& options) {
  return part_work(flat().reduce(tensors, options));
}

HierarchicalBackend::WorkPtr HierarchicalBackend::broadcast(Tensors& tensors,
                                                            const c10d::BroadcastOptions& options) {
  const int source = shm::root_of("broadcast", options.rootRank, options.rootTensor, getSize());
  const at::Tensor& tensor = shm::only(tensors);
  return start("broadcast", hierarchical::broadcast_pieces(site_, tensor, source), tensors,
               options.timeout);
}

HierarchicalBackend::WorkPtr HierarchicalBackend::start_all_gather(
    const std::vector<shm::Piece>& outputs, Tensors tensors, std::chrono::milliseconds timeout) {
  const shm::Piece input = shm::piece_of(tensors.back());
  for (const shm::Piece& output : outputs) shm::check_same_size(output, input);
  return start("all_gather", hierarchical::all_gather_pieces(site_, outputs, input),
               std::move(tensors), timeout);
}

HierarchicalBackend::WorkPtr HierarchicalBackend::allgather(std::vector<Tensors>& outputs,
                                                            Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  if (outputs.size() != 1) throw UsageError("all_gather takes one list of outputs");
  shm::check_count(outputs[0], getSize());
  Tensors tensors = outputs[0];
  tensors.push_back(shm::only(inputs));
  return start_all_gather(shm::pieces_of(outputs[0]), std::move(tensors), options.timeout);
}

HierarchicalBackend::WorkPtr HierarchicalBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  return start_all_gather(shm::split_flat(output, getSize()), {output, input}, options.timeout);
}

HierarchicalBackend::WorkPtr HierarchicalBackend::gather(std::vector<Tensors>& outputs,
                                                         Tensors& inputs,
                                                         const c10d::GatherOptions& options) {
  return part_work(flat().gather(outputs, inputs, options));
}

HierarchicalBackend::WorkPtr HierarchicalBackend::scatter(Tensors& outputs,
                                                          std::vector<Tensors>& inputs,
                                                          const c10d::ScatterOptions& options) {
  return part_work(flat().scatter(outputs, inputs, options));
}

HierarchicalBackend::WorkPtr HierarchicalBackend::start_reduce_scatter(
    const std::vector<shm::Piece>& inputs, Tensors tensors,
    const c10d::ReduceScatterOptions& options) {
  const shm::Piece output = shm::piece_of(tensors.front());
  const ReduceOp op = shm::op_of(options.reduceOp);
  shm::check_reduction(output.element, op);
  for (const shm::Piece& input : inputs) shm::check_same_size(input, output);
  return start("reduce_scatter", hierarchical::reduce_scatter_pieces(site_, output, inputs, op),
               std::move(tensors), options.timeout);
}

HierarchicalBackend::WorkPtr HierarchicalBackend::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  if (inputs.size() != 1) throw UsageError("reduce_scatter takes one list of inputs");
  shm::check_count(inputs[0], getSize());
  Tensors tensors{shm::only(outputs)};
  tensors.insert(tensors.end(), inputs[0].begin(), inputs[0].end());
  return start_reduce_scatter(shm::pieces_of(inputs[0]), std::move(tensors), options);
}

HierarchicalBackend::WorkPtr HierarchicalBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  return start_reduce_scatter(shm::split_flat(input, getSize()), {output, input}, options);
}

HierarchicalBackend::WorkPtr HierarchicalBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllToAllOptions& options) {
  return part_work(flat().alltoall(outputs, inputs, options));
}

HierarchicalBackend::WorkPtr HierarchicalBackend::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
    std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  return part_work(flat().alltoall_base(output, input, output_splits, input_splits, options));
}

HierarchicalBackend::WorkPtr HierarchicalBackend::barrier(const c10d::BarrierOptions& options) {
  return part_work(flat().barrier(options));
}

HierarchicalBackend::WorkPtr HierarchicalBackend::barrier_of_machine(const CallTerms& terms) {
  return start("barrier", hierarchical::machine_barrier_pieces(), {}, terms.timeout);
}

HierarchicalBackend::WorkPtr HierarchicalBackend::sum_over_machines(const at::Tensor& tensor,
                                                                    const CallTerms& terms) {
  return start("all_reduce", hierarchical::sum_pieces(site_, tensor), {tensor}, terms.timeout);
}

std::shared_ptr<NativeBackend> make_hierarchical_backend(const BackendConfig& config) {
  const MemoryDomains domains =
      config.domains.empty()
          ? exchange_memory_domains(*watched(config.store, config.while_waiting), config.rank,
                                    config.world_size, Deadline::after(config.connect_timeout))
          : config.domains;
  HierarchicalBackend::Parts parts{.machines = hierarchical::machines_of(domains, config.rank),
                                   .store = keys_of(config, "end")};
  if (parts.machines.count == 1) return make_shm_backend(config);
  if (parts.machines.most_ranks == 1) return make_gloo_backend(config);
  connect_own_machine(config, parts);
  parts.flat = connect_all(config);
  if (parts.machines.has_share()) {
    parts.scatter = connect_partners(config, parts.machines, "scatter");
    if (parts.machines.count > 2) {
      parts.spread = connect_partners(config, parts.machines, "spread");
    }
  }
  return std::make_shared<NativeHierarchical>(c10::make_intrusive<HierarchicalBackend>(
      std::move(parts), config.rank, config.world_size, config.timeout));
}

c10::Device hierarchical_device(int) {
  return c10::kCPU;
}

}  // namespace lockstep::inline internal
