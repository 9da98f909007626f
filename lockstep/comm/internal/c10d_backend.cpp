#include "lockstep/comm/internal/c10d_backend.h"

namespace lockstep::inline internal {
namespace {

// Ours are numbered as c10d's.
static_assert(static_cast<int>(ReduceOp::kSum) == c10d::ReduceOp::SUM);
static_assert(static_cast<int>(ReduceOp::kAvg) == c10d::ReduceOp::AVG);
static_assert(static_cast<int>(ReduceOp::kProduct) == c10d::ReduceOp::PRODUCT);
static_assert(static_cast<int>(ReduceOp::kMin) == c10d::ReduceOp::MIN);
static_assert(static_cast<int>(ReduceOp::kMax) == c10d::ReduceOp::MAX);
static_assert(static_cast<int>(ReduceOp::kBand) == c10d::ReduceOp::BAND);
static_assert(static_cast<int>(ReduceOp::kBor) == c10d::ReduceOp::BOR);
static_assert(static_cast<int>(ReduceOp::kBxor) == c10d::ReduceOp::BXOR);

c10d::ReduceOp::RedOpType c10d_op(ReduceOp op) {
  return static_cast<c10d::ReduceOp::RedOpType>(op);
}

template <class Options>
Options options_of(const CallTerms& terms) {
  Options options;
  options.timeout = terms.timeout;
  return options;
}

template <class Options>
Options options_of(const CallTerms& terms, ReduceOp op) {
  auto options = options_of<Options>(terms);
  options.reduceOp = c10d_op(op);
  return options;
}

template <class Options>
Options rooted_options_of(const CallTerms& terms, int root) {
  auto options = options_of<Options>(terms);
  options.rootRank = root;
  return options;
}

}  // namespace

NativeBackend::WorkPtr C10dBackend::broadcast(const Tensor& tensor, int source,
                                              const CallTerms& terms) {
  Tensors tensors{tensor};
  return wrap(
      backend_->broadcast(tensors, rooted_options_of<c10d::BroadcastOptions>(terms, source)),
      terms);
}

NativeBackend::WorkPtr C10dBackend::all_reduce(const Tensor& tensor, ReduceOp op,
                                               const CallTerms& terms) {
  Tensors tensors{tensor};
  return wrap(backend_->allreduce(tensors, options_of<c10d::AllreduceOptions>(terms, op)), terms);
}

NativeBackend::WorkPtr C10dBackend::reduce(const Tensor& tensor, int target, ReduceOp op,
                                           const CallTerms& terms) {
  Tensors tensors{tensor};
  auto options = rooted_options_of<c10d::ReduceOptions>(terms, target);
  options.reduceOp = c10d_op(op);
  return wrap(backend_->reduce(tensors, options), terms);
}

NativeBackend::WorkPtr C10dBackend::all_gather(const Tensors& outputs, const Tensor& input,
                                               const CallTerms& terms) {
  std::vector<Tensors> output_lists{outputs};
  Tensors inputs{input};
  return wrap(backend_->allgather(output_lists, inputs, options_of<c10d::AllgatherOptions>(terms)),
              terms);
}

NativeBackend::WorkPtr C10dBackend::all_gather_into_tensor(const Tensor& output,
                                                           const Tensor& input,
                                                           const CallTerms& terms) {
  Tensor target = output;
  Tensor source = input;
  return wrap(backend_->_allgather_base(target, source, options_of<c10d::AllgatherOptions>(terms)),
              terms);
}

NativeBackend::WorkPtr C10dBackend::gather(const Tensors& outputs, const Tensor& input, int target,
                                           const CallTerms& terms) {
  std::vector<Tensors> output_lists;
  if (backend_->getRank() == target) output_lists.push_back(outputs);
  Tensors inputs{input};
  return wrap(
      backend_->gather(output_lists, inputs, rooted_options_of<c10d::GatherOptions>(terms, target)),
      terms);
}

NativeBackend::WorkPtr C10dBackend::scatter(const Tensor& output, const Tensors& inputs, int source,
                                            const CallTerms& terms) {
  Tensors outputs{output};
  std::vector<Tensors> input_lists;
  if (backend_->getRank() == source) input_lists.push_back(inputs);
  return wrap(backend_->scatter(outputs, input_lists,
                                rooted_options_of<c10d::ScatterOptions>(terms, source)),
              terms);
}

NativeBackend::WorkPtr C10dBackend::reduce_scatter(const Tensor& output, const Tensors& inputs,
                                                   ReduceOp op, const CallTerms& terms) {
  Tensors outputs{output};
  std::vector<Tensors> input_lists{inputs};
  return wrap(backend_->reduce_scatter(outputs, input_lists,
                                       options_of<c10d::ReduceScatterOptions>(terms, op)),
              terms);
}

NativeBackend::WorkPtr C10dBackend::reduce_scatter_tensor(const Tensor& output, const Tensor& input,
                                                          ReduceOp op, const CallTerms& terms) {
  Tensor target = output;
  Tensor source = input;
  return wrap(backend_->_reduce_scatter_base(target, source,
                                             options_of<c10d::ReduceScatterOptions>(terms, op)),
              terms);
}

NativeBackend::WorkPtr C10dBackend::all_to_all(const Tensors& outputs, const Tensors& inputs,
                                               const CallTerms& terms) {
  Tensors targets = outputs;
  Tensors sources = inputs;
  return wrap(backend_->alltoall(targets, sources, options_of<c10d::AllToAllOptions>(terms)),
              terms);
}

NativeBackend::WorkPtr C10dBackend::all_to_all_single(
    const Tensor& output, const Tensor& input, const std::vector<std::int64_t>& output_splits,
    const std::vector<std::int64_t>& input_splits, const CallTerms& terms) {
  Tensor target = output;
  Tensor source = input;
  auto target_splits = output_splits;
  auto source_splits = input_splits;
  return wrap(backend_->alltoall_base(target, source, target_splits, source_splits,
                                      options_of<c10d::AllToAllOptions>(terms)),
              terms);
}

NativeBackend::WorkPtr C10dBackend::barrier(const CallTerms& terms) {
  return wrap(backend_->barrier(options_of<c10d::BarrierOptions>(terms)), terms);
}

NativeBackend::WorkPtr C10dBackend::send(const Tensor& tensor, int target, int tag,
                                         const CallTerms& terms) {
  Tensors tensors{tensor};
  return wrap(backend_->send(tensors, target, tag), terms);
}

NativeBackend::WorkPtr C10dBackend::recv(const Tensor& tensor, int source, int tag,
                                         const CallTerms& terms) {
  Tensors tensors{tensor};
  return wrap(backend_->recv(tensors, source, tag), terms);
}

NativeBackend::WorkPtr C10dBackend::recv_from_any(const Tensor& tensor, int tag,
                                                  const CallTerms& terms) {
  Tensors tensors{tensor};
  return wrap(backend_->recvAnysource(tensors, tag), terms);
}

}  // namespace lockstep::inline internal
