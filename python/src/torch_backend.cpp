#include "python/src/torch_backend.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/comm/internal/group_over_store.h"
#include "lockstep/comm/internal/launcher_notice.h"
#include "lockstep/comm/internal/native_collectives.h"
#include "lockstep/os/memory/freed_memory.h"
#include "python/src/progress_thread.h"
#include "python/src/python_errors.h"

namespace lockstep::python {
namespace {

using Use = Staging::Use;

std::string name_in_errors(const c10d::Backend::Options& options) {
  // torch.distributed calls the default group "0".
  const std::string& name = options.group_name;
  return name.empty() || name == "0" ? "default" : name;
}

ProcessGroup connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                     const c10d::Backend::Options& options) {
  show_recent_calls_to_launcher();
  keep_freed_memory();
  // A collective that is compared by an exchange would wait for all ranks where Gloo does not.
  const auto checks = env::boolean(env::kCheckCalls);
  try {
    return make_group_over_store(store, {.rank = rank,
                                         .world_size = size,
                                         .name = name_in_errors(options),
                                         .timeout = options.timeout,
                                         .check_calls = checks.value_or(false),
                                         .while_waiting = run_signal_handlers});
  } catch (...) {
    rethrow_for_python();
  }
}

}  // namespace

TorchBackend::TorchBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                           c10::intrusive_ptr<Options> options)
    : Backend(rank, size),
      options_(std::move(options)),
      store_(std::move(store)),
      group_(connect(store_, rank, size, *options_)),
      timeout_ms_(options_->timeout.count()),
      error_(std::make_shared<std::atomic<c10d::ErrorType>>(c10d::ErrorType::SUCCESS)) {}

at::Tensor TorchBackend::allocateTensor(long size, at::TensorOptions options) {
  check_process("allocateTensor");
  return group_.allocate_tensor(size, c10::typeMetaToScalarType(options.dtype()));
}

void TorchBackend::setTimeout(std::chrono::milliseconds timeout) {
  if (timeout <= std::chrono::milliseconds(0)) {
    throw UsageError(concat("setting a timeout: ", timeout.count(), " ms is not positive"));
  }
  timeout_ms_ = timeout.count();
  options_->timeout = timeout;
}

void TorchBackend::abort() {
  check_process("abort");
  if (const auto backend = group_.c10d_backend()) backend->abort();
}

c10::intrusive_ptr<c10d::Backend> TorchBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                      const std::vector<int>& ranks,
                                                      const c10::intrusive_ptr<Options>& options) {
  const auto own = std::ranges::find(ranks, getRank());
  if (own == ranks.end()) return {};
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>("split/" + options->group_name, store);
  return c10::make_intrusive<TorchBackend>(std::move(prefixed),
                                           static_cast<int>(own - ranks.begin()),
                                           static_cast<int>(ranks.size()), options);
}

CollectiveOptions TorchBackend::collective_options(std::chrono::milliseconds timeout) const {
  const bool is_set = timeout > std::chrono::milliseconds(0);
  return {.async_op = true,
          .timeout = is_set ? timeout : std::chrono::milliseconds(timeout_ms_.load()),
          .deadline_from_wait = true};
}

int TorchBackend::checked_root(const char* operation, std::int64_t rank,
                               std::int64_t tensor) const {
  if (rank < 0 || rank >= getSize()) {
    throw UsageError(concat(operation, ": root rank ", rank, " is not a rank of this group (0 to ",
                            getSize() - 1, ")"));
  }
  if (tensor != 0) {
    throw UsageError(concat(operation, ": root tensor ", tensor, "; there is one tensor a rank"));
  }
  return static_cast<int>(rank);
}

void TorchBackend::rethrow() const {
  try {
    throw;
  } catch (const OperationError&) {
    *error_ = error_type_of(std::current_exception());
    rethrow_for_python();
  } catch (...) {
    rethrow_for_python();
  }
}

c10::intrusive_ptr<TorchWork> TorchBackend::make_work(const Kind& kind, const Tensors& inputs,
                                                      const Tensors& outputs) {
  check_process(kind.title);
  return c10::make_intrusive<TorchWork>(TorchWork::Call{.op_type = kind.op_type,
                                                        .title = kind.title,
                                                        .rank = getRank(),
                                                        .sequence = counter_of(kind)++,
                                                        .inputs = inputs,
                                                        .outputs = outputs,
                                                        .error_of_backend = error_,
                                                        .process = process_,
                                                        .source = kind.source});
}

std::shared_ptr<Part> TorchBackend::start_part(const Staging& staging,
                                               std::chrono::milliseconds timeout, Start start,
                                               const Then& then) {
  auto options = collective_options(timeout);
  options.name = staging.dtype_name();
  try {
    auto write_results = staging.write_results();
    if (!then) return std::make_shared<Part>(start(options), std::move(write_results));
    return std::make_shared<Part>(start(options), [write_results, then] {
      if (write_results) write_results();
      then();
    });
  } catch (...) {
    forget_batch();  // c10d does not end a batch in which a call failed
    rethrow();
  }
}

TorchBackend::WorkPtr TorchBackend::track(c10::intrusive_ptr<TorchWork> work, const Kind& kind) {
  add_to_batch(work, kind);
  const bool in_backward = torch::autograd::get_current_graph_task_id() >= 0;
  // Results that are copied back arrive, too, if the program drops the work.
  const bool is_watched = kind.is_async && (!in_backward || work->writes_results());
  if (is_watched && !work->isCompleted()) ProgressThread::instance().add(work);
  return work;
}

TorchBackend::WorkPtr TorchBackend::run(const Kind& kind, const Staging& staging,
                                        const Tensors& inputs, const Tensors& outputs,
                                        std::chrono::milliseconds timeout, Start start,
                                        const Then& then) {
  const WithoutGil without_gil;
  check_process(kind.title);
  // PyTorch registers works of all calls while graphs may take their tensors as inputs.
  const bool needs_work =
      kind.is_async || is_coalescing() || c10d::allow_inflight_collective_as_graph_input();
  if (!needs_work) {
    run_to_end(kind, staging, inputs, timeout, start, then);
    return {};
  }
  auto work = make_work(kind, inputs, outputs);
  work->add(start_part(staging, timeout, start, then));
  return track(std::move(work), kind);
}

// For one that waits at once a work would be made, passed to Python and asked to wait.
void TorchBackend::run_to_end(const Kind& kind, const Staging& staging, const Tensors& inputs,
                              std::chrono::milliseconds timeout, Start start, const Then& then) {
  ++counter_of(kind);
  at::RecordFunction profiled(at::RecordScope::USER_SCOPE);
  if (profiled.isActive()) {
    const std::vector<c10::IValue> values(inputs.begin(), inputs.end());
    profiled.before(kind.title, c10::ArrayRef<const c10::IValue>(values.data(), values.size()));
  }
  auto options = collective_options(timeout);
  options.name = staging.dtype_name();
  Work work;
  try {
    work = start(options);
  } catch (...) {
    rethrow();
  }
  try {
    work.wait();
    if (const auto write_results = staging.write_results()) write_results();
    if (then) then();
  } catch (...) {
    *error_ = error_type_of(std::current_exception());
    rethrow_for_python();
  }
}

ReduceOptions with_op(const CollectiveOptions& options, ReduceOp op) {
  return {.op = op, .async_op = true, .timeout = options.timeout, .name = options.name};
}

TorchBackend::WorkPtr TorchBackend::broadcast(Tensors& tensors,
                                              const c10d::BroadcastOptions& options) {
  const int root = checked_root("broadcast", options.rootRank, options.rootTensor);
  const at::Tensor& tensor = only("broadcast", tensors);
  Staging staging("broadcast", Use::kMove);
  const at::Tensor staged = getRank() == root ? staging.in(tensor) : staging.out(tensor);
  return run({c10d::OpType::BROADCAST, "lockstep:broadcast", options.asyncOp}, staging, tensors,
             tensors, options.timeout,
             [&](const auto& terms) { return group_.broadcast(staged, root, terms); });
}

TorchBackend::WorkPtr TorchBackend::allreduce(Tensors& tensors,
                                              const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only("all_reduce", tensors);
  if (tensor.layout() == at::kSparse) return allreduce_sparse(tensors, options);
  const ReduceOp op = reduce_op("all_reduce", options.reduceOp);
  Staging staging("all_reduce", Use::kReduce, op);
  const at::Tensor staged = staging.in_out(tensor);
  return run({c10d::OpType::ALLREDUCE, "lockstep:all_reduce", options.asyncOp}, staging, tensors,
             tensors, options.timeout,
             [&](const auto& terms) { return group_.all_reduce(staged, with_op(terms, op)); });
}

TorchBackend::WorkPtr TorchBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const int root = checked_root("reduce", options.rootRank, options.rootTensor);
  const at::Tensor& tensor = only("reduce", tensors);
  const ReduceOp op = reduce_op("reduce", options.reduceOp);
  Staging staging("reduce", Use::kReduce, op);
  const at::Tensor staged = getRank() == root ? staging.in_out(tensor) : staging.in(tensor);
  return run({c10d::OpType::REDUCE, "lockstep:reduce", options.asyncOp}, staging, tensors, tensors,
             options.timeout,
             [&](const auto& terms) { return group_.reduce(staged, root, with_op(terms, op)); });
}

TorchBackend::WorkPtr TorchBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) {
  const at::Tensor& input = only("all_gather", inputs);
  const Tensors& targets = only("all_gather", outputs);
  check_alike("all_gather", targets, input);
  Staging staging("all_gather", Use::kMove);
  const at::Tensor source = staging.in(input);
  const Tensors staged = staging.out(targets);
  return run({c10d::OpType::ALLGATHER, "lockstep:all_gather", options.asyncOp}, staging, inputs,
             targets, options.timeout,
             [&](const auto& terms) { return group_.all_gather(staged, source, terms); });
}

TorchBackend::WorkPtr TorchBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                    const c10d::AllgatherOptions& options) {
  if (output.scalar_type() != input.scalar_type()) check_alike("all_gather", {output}, input);
  Staging staging("all_gather_into_tensor", Use::kMove);
  const at::Tensor source = staging.in(input);
  const at::Tensor target = staging.out(output);
  return run({c10d::OpType::_ALLGATHER_BASE, "lockstep:_all_gather_base", options.asyncOp}, staging,
             {input}, {output}, options.timeout, [&](const auto& terms) {
               return group_.all_gather_into_tensor(target, source, terms);
             });
}

TorchBackend::WorkPtr TorchBackend::gather(TensorLists& outputs, Tensors& inputs,
                                           const c10d::GatherOptions& options) {
  const int root = checked_root("gather", options.rootRank, 0);
  const at::Tensor& input = only("gather", inputs);
  Staging staging("gather", Use::kMove);
  const at::Tensor source = staging.in(input);
  Tensors targets;
  if (getRank() == root) {
    targets = only("gather", outputs);
    check_alike("gather", targets, input);
  } else if (!outputs.empty()) {
    throw UsageError("gather: outputs are given on a rank that is not the root");
  }
  const Tensors staged = staging.out(targets);
  return run({c10d::OpType::GATHER, "lockstep:gather", options.asyncOp}, staging, inputs, targets,
             options.timeout,
             [&](const auto& terms) { return group_.gather(staged, source, root, terms); });
}

TorchBackend::WorkPtr TorchBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                            const c10d::ScatterOptions& options) {
  const int root = checked_root("scatter", options.rootRank, 0);
  const at::Tensor& output = only("scatter", outputs);
  Staging staging("scatter", Use::kMove);
  const at::Tensor target = staging.out(output);
  Tensors sources;
  if (getRank() == root) {
    sources = only("scatter", inputs);
    check_alike("scatter", sources, output);
  } else if (!inputs.empty()) {
    throw UsageError("scatter: inputs are given on a rank that is not the root");
  }
  const Tensors staged = staging.in(sources);
  return run({c10d::OpType::SCATTER, "lockstep:scatter", options.asyncOp}, staging, sources,
             outputs, options.timeout,
             [&](const auto& terms) { return group_.scatter(target, staged, root, terms); });
}

TorchBackend::WorkPtr TorchBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                   const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only("reduce_scatter", outputs);
  const Tensors& sources = only("reduce_scatter", inputs);
  check_alike("reduce_scatter", sources, output);
  const ReduceOp op = reduce_op("reduce_scatter", options.reduceOp);
  Staging staging("reduce_scatter", Use::kReduce, op);
  const at::Tensor target = staging.out(output);
  const Tensors staged = staging.in(sources);
  return run({c10d::OpType::REDUCE_SCATTER, "lockstep:reduce_scatter", options.asyncOp}, staging,
             sources, outputs, options.timeout, [&](const auto& terms) {
               return group_.reduce_scatter(target, staged, with_op(terms, op));
             });
}

TorchBackend::WorkPtr TorchBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  if (output.scalar_type() != input.scalar_type()) check_alike("reduce_scatter", {output}, input);
  const ReduceOp op = reduce_op("reduce_scatter_tensor", options.reduceOp);
  Staging staging("reduce_scatter_tensor", Use::kReduce, op);
  const at::Tensor target = staging.out(output);
  const at::Tensor source = staging.in(input);
  return run({c10d::OpType::_REDUCE_SCATTER_BASE, "lockstep:_reduce_scatter_base", options.asyncOp},
             staging, {input}, {output}, options.timeout, [&](const auto& terms) {
               return group_.reduce_scatter_tensor(target, source, with_op(terms, op));
             });
}

TorchBackend::WorkPtr TorchBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                             const c10d::AllToAllOptions& options) {
  const auto ranks = static_cast<std::size_t>(getSize());
  if (outputs.size() != ranks || inputs.size() != ranks) {
    throw UsageError(concat("all_to_all: ", outputs.size(), " outputs and ", inputs.size(),
                            " inputs; one of each for each of ", ranks, " ranks is needed"));
  }
  Staging staging("all_to_all", Use::kMove);
  const Tensors sources = staging.in(inputs);
  const Tensors targets = staging.out(outputs);
  return run({c10d::OpType::ALLTOALL, "lockstep:all_to_all", options.asyncOp}, staging, inputs,
             outputs, options.timeout,
             [&](const auto& terms) { return group_.all_to_all(targets, sources, terms); });
}

TorchBackend::WorkPtr TorchBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                  std::vector<std::int64_t>& output_splits,
                                                  std::vector<std::int64_t>& input_splits,
                                                  const c10d::AllToAllOptions& options) {
  if (output.scalar_type() != input.scalar_type()) check_alike("all_to_all", {output}, input);
  Staging staging("all_to_all_single", Use::kMove);
  const at::Tensor source = staging.in(input);
  const at::Tensor target = staging.out(output);
  return run({c10d::OpType::ALLTOALL_BASE, "lockstep:all_to_all", options.asyncOp}, staging,
             {input}, {output}, options.timeout, [&](const auto& terms) {
               return group_.all_to_all_single(target, source, output_splits, input_splits, terms);
             });
}

namespace {

// Calls without elements send nothing. A message without elements must come after those before it
// and say who sent it, so it has one byte.
at::Tensor at_least_a_byte(const at::Tensor& staged) {
  return staged.numel() > 0 ? staged : at::zeros({1}, at::kByte);
}

}  // namespace

TorchBackend::WorkPtr TorchBackend::send(Tensors& tensors, int target, int tag) {
  const at::Tensor& tensor = only("send", tensors);
  Staging staging("send", Use::kMove);
  const at::Tensor staged = at_least_a_byte(staging.in(tensor));
  return run({c10d::OpType::SEND, "lockstep:send", true, true}, staging, tensors, tensors,
             kNoTimeout,
             [&](const auto& terms) { return group_.send(staged, target, tag, terms); });
}

TorchBackend::WorkPtr TorchBackend::recv(Tensors& tensors, int source, int tag) {
  const at::Tensor& tensor = only("recv", tensors);
  Staging staging("recv", Use::kMove);
  const at::Tensor staged = at_least_a_byte(staging.out(tensor));
  return run({c10d::OpType::RECV, "lockstep:recv", true, true, source}, staging, tensors, tensors,
             kNoTimeout,
             [&](const auto& terms) { return group_.recv(staged, source, tag, terms); });
}

TorchBackend::WorkPtr TorchBackend::recvAnysource(Tensors& tensors, int tag) {
  const at::Tensor& tensor = only("recv", tensors);
  if (group_.backend_name() == "hierarchical") {
    throw UsageError("recv: the backend hierarchical has no receive from any rank; name the rank");
  }
  Staging staging("recv", Use::kMove);
  const at::Tensor staged = at_least_a_byte(staging.out(tensor));
  const WithoutGil without_gil;
  const Kind kind{c10d::OpType::RECVANYSOURCE, "lockstep:recvAnySource", true, true};
  auto work = make_work(kind, tensors, tensors);
  c10::intrusive_ptr<c10d::Work> message;
  work->add(start_part(staging, kNoTimeout, [&](const auto& terms) {
    return internal::recv_from_any(group_, staged, tag, terms, message);
  }));
  work->set_message(std::move(message));
  return track(std::move(work), kind);
}

TorchBackend::WorkPtr TorchBackend::barrier(const c10d::BarrierOptions& options) {
  return run({c10d::OpType::BARRIER, "lockstep:barrier", options.asyncOp},
             Staging("barrier", Use::kMove), {}, {}, options.timeout,
             [&](const auto& terms) { return group_.barrier(terms); });
}

void TorchBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool) {
  check_process("monitored_barrier");
  const WithoutGil without_gil;
  try {
    group_.monitored_barrier(collective_options(options.timeout).timeout);
  } catch (...) {
    rethrow_for_python();
  }
}

// Ranks exchange how many rows each has, then the rows, and add them in rank order.
TorchBackend::WorkPtr TorchBackend::allreduce_sparse(Tensors& tensors,
                                                     const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only("all_reduce", tensors);
  if (tensor.layout() != at::kSparse) {
    throw UsageError("all_reduce: takes dense tensors and sparse ones in COO layout");
  }
  if (reduce_op("all_reduce", options.reduceOp) != ReduceOp::kSum) {
    throw UsageError("all_reduce: only SUM is defined for sparse tensors");
  }
  const WithoutGil without_gil;
  const Kind kind{c10d::OpType::_ALLREDUCE_SPARSE, "lockstep:sparse_all_reduce", options.asyncOp};
  auto work = make_work(kind, {}, tensors);
  try {
    add_sparse(tensor, options.timeout);
  } catch (...) {
    rethrow();
  }
  return work;
}

void TorchBackend::add_sparse(const at::Tensor& tensor, std::chrono::milliseconds timeout) {
  const c10::NoGradGuard no_grad;
  auto terms = collective_options(timeout);
  terms.async_op = false;
  const at::Tensor own = tensor.detach().coalesce();
  const auto gather = [&](const at::Tensor& input) {
    Staging staging("all_reduce", Use::kMove);
    at::Tensor all = at::empty({getSize() * input.numel()}, input.options());
    group_.all_gather_into_tensor(staging.out(all), staging.in(input), terms);
    return all.view({getSize(), -1});
  };
  // Shape, dtype and kind first, so that a mismatch is an error of all ranks.
  constexpr std::int64_t kMostDimensions = 16;
  if (own.dim() > kMostDimensions) {
    throw UsageError(concat("all_reduce: a sparse tensor of ", own.dim(), " dimensions; at most ",
                            kMostDimensions, " are supported"));
  }
  at::Tensor header = at::zeros({4 + kMostDimensions}, at::kLong);
  auto* const fields = header.mutable_data_ptr<std::int64_t>();
  fields[0] = own._nnz();
  fields[1] = own.sparse_dim();
  fields[2] = own.dense_dim();
  fields[3] = static_cast<std::int64_t>(own.scalar_type());
  std::ranges::copy(own.sizes(), fields + 4);
  const at::Tensor headers = gather(header);
  const std::int64_t most_rows = headers.select(1, 0).max().item<std::int64_t>();
  for (int rank = 0; rank < getSize(); ++rank) {
    if (headers[rank].slice(0, 1).equal(header.slice(0, 1))) continue;
    throw UsageError(concat("all_reduce: rank ", rank,
                            " passed a sparse tensor of another shape or "
                            "dtype than rank ",
                            getRank(), "; pass the same on every rank"));
  }
  if (most_rows == 0) return;
  const auto padded = [&](const at::Tensor& rows) {  // rows first
    auto sizes = rows.sizes().vec();
    sizes[0] = most_rows;
    at::Tensor all = at::zeros(sizes, rows.options());
    all.narrow(0, 0, rows.size(0)).copy_(rows);
    return all;
  };
  const at::Tensor indices = padded(own.indices().t());
  const at::Tensor values = padded(own.values());
  const at::Tensor all_indices = gather(indices).view({getSize(), most_rows, own.sparse_dim()});
  auto value_sizes = values.sizes().vec();
  value_sizes.insert(value_sizes.begin(), getSize());
  const at::Tensor all_values = gather(values).view(value_sizes);
  Tensors used_indices;
  Tensors used_values;
  for (int rank = 0; rank < getSize(); ++rank) {
    const auto rows = headers[rank][0].item<std::int64_t>();
    used_indices.push_back(all_indices[rank].narrow(0, 0, rows).t());
    used_values.push_back(all_values[rank].narrow(0, 0, rows));
  }
  const at::Tensor sum = at::sparse_coo_tensor(at::cat(used_indices, 1), at::cat(used_values),
                                               own.sizes(), own.options())
                             .coalesce();
  // Not of a detached tensor: a sparse one would get the new rows alone.
  tensor.copy_(sum);
}

}  // namespace lockstep::python
