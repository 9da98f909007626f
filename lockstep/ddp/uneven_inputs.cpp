#include "lockstep/ddp/uneven_inputs.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep {

BatchVote::BatchVote(Replica& replica, int batches_per_step) : replica_(replica) {
  if (batches_per_step < 1) {
    throw UsageError(concat("DistributedDataParallel::join: gradient_accumulation_steps=",
                            batches_per_step, " is not a number of batches; it must be 1 or more"));
  }
}

BatchVote::~BatchVote() {
  replica_.withdraw_vote();
  replica_.set_has_data(true);
}

void BatchVote::begin_batch(bool has_data) {
  replica_.set_has_data(has_data);
}

int BatchVote::ask(int available) {
  const ProcessGroup& group = replica_.process_group();
  // The most, and the least as the most of its negative.
  const at::Tensor votes = at::empty({2}, at::TensorOptions(at::kLong).device(group.device()));
  votes.narrow(0, 0, 1).fill_(available);
  votes.narrow(0, 1, 1).fill_(-available);
  group.all_reduce(votes, {.op = ReduceOp::kMax, .name = "join"});
  const at::Tensor agreed = votes.to(at::kCPU);
  all_have_ = agreed.const_data_ptr<std::int64_t>()[1] < 0;
  return static_cast<int>(agreed.const_data_ptr<std::int64_t>()[0]);
}

void BatchVote::cast(bool has_data, int available) {
  cast_ = available;
  replica_.cast_vote(has_data, available);
}

void BatchVote::withdraw() {
  replica_.set_has_data(true);
  replica_.withdraw_vote();
}

int BatchVote::count() {
  replica_.set_has_data(true);
  const auto highest = replica_.withdraw_vote();
  return highest ? *highest : ask(cast_);
}

std::vector<BatchTensorShape> BatchVote::agree_on_shapes(
    const std::vector<BatchTensorShape>& own) const {
  const ProcessGroup& group = replica_.process_group();
  const auto on_group = at::TensorOptions(at::kLong).device(group.device());
  const at::Tensor source = at::empty({1}, on_group);
  source.fill_(own.empty() ? group.world_size() : group.rank());
  group.all_reduce(source, {.op = ReduceOp::kMin, .name = "join"});
  const int root = source.item<int>();
  if (root == group.world_size()) return own;  // lists of samples only

  // Per tensor: dtype, number of dimensions, sizes.
  std::vector<std::int64_t> numbers;
  for (const BatchTensorShape& shape : own) {
    numbers.push_back(static_cast<std::int64_t>(shape.dtype));
    numbers.push_back(static_cast<std::int64_t>(shape.sizes.size()));
    numbers.insert(numbers.end(), shape.sizes.begin(), shape.sizes.end());
  }
  const at::Tensor length = at::empty({1}, on_group);
  length.fill_(static_cast<std::int64_t>(numbers.size()));
  group.broadcast(length, root, {.name = "join"});
  numbers.resize(static_cast<std::size_t>(length.item<std::int64_t>()));
  const at::Tensor message = at::empty({length.item<std::int64_t>()}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), message.mutable_data_ptr<std::int64_t>());
  const at::Tensor on_device = message.to(group.device());
  group.broadcast(on_device, root, {.name = "join"});
  if (!own.empty()) return own;

  const at::Tensor received = on_device.to(at::kCPU);
  const auto* number = received.const_data_ptr<std::int64_t>();
  const auto* const end = number + received.numel();
  std::vector<BatchTensorShape> shapes;
  while (number != end) {
    BatchTensorShape shape{.dtype = static_cast<at::ScalarType>(*number++)};
    const std::int64_t dimensions = *number++;
    shape.sizes.assign(number, number + dimensions);
    number += dimensions;
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

}  // namespace lockstep
