#include "tests/ranks/formula.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "lockstep/comm/init_process_group.h"

namespace lockstep::testing {
namespace {

std::int64_t combine(ReduceOp op, std::int64_t left, std::int64_t right) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return left + right;
    case ReduceOp::kProduct:
      return left * right;
    case ReduceOp::kMin:
      return std::min(left, right);
    case ReduceOp::kMax:
      return std::max(left, right);
    case ReduceOp::kBand:
      return left & right;
    case ReduceOp::kBor:
      return left | right;
    case ReduceOp::kBxor:
      return left ^ right;
  }
  return 0;
}

template <class Value>
at::Tensor fill(std::int64_t numel, at::ScalarType dtype, Value&& value) {
  at::Tensor tensor = at::empty({numel}, at::kDouble);
  auto* data = tensor.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < numel; ++i) data[i] = value(i);
  return tensor.to(default_process_group().device(), dtype);
}

}  // namespace

std::int64_t value_at(int rank, std::int64_t index) {
  // The top two bits of a multiplicative hash.
  const auto mixed = (static_cast<std::uint64_t>(index) + 1) * 0x9E3779B97F4A7C15u +
                     static_cast<std::uint64_t>(rank) * 0xD1B54A32D192ED03u;
  return static_cast<std::int64_t>(mixed >> 62);
}

at::Tensor formula(int rank, std::int64_t numel, at::ScalarType dtype, std::int64_t first) {
  return fill(numel, dtype,
              [&](std::int64_t i) { return static_cast<double>(value_at(rank, first + i)); });
}

at::Tensor reduced_formula(int world_size, std::int64_t numel, at::ScalarType dtype, ReduceOp op,
                           std::int64_t first) {
  const bool is_bool = dtype == at::kBool;
  return fill(numel, dtype, [&](std::int64_t i) {
    const auto of = [&](int rank) {
      const auto value = value_at(rank, first + i);
      return is_bool ? std::int64_t{value != 0} : value;
    };
    std::int64_t total = of(0);
    for (int rank = 1; rank < world_size; ++rank) total = combine(op, total, of(rank));
    return op == ReduceOp::kAvg ? static_cast<double>(total) / world_size
                                : static_cast<double>(total);
  });
}

}  // namespace lockstep::testing
