#include "lockstep/comm/backends/mpi/rank_order_reduction.h"

#include <stdexcept>

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

namespace lockstep::mpi {
namespace {

using RedOpType = c10d::ReduceOp::RedOpType;

// On truth values the sum is "any" and the product "all".
RedOpType op_for(const c10d::ReduceOp& op, at::ScalarType dtype) {
  const RedOpType type = op.op_;
  if (dtype != at::kBool) return type;
  if (type == RedOpType::SUM || type == RedOpType::MAX) return RedOpType::BOR;
  if (type == RedOpType::PRODUCT || type == RedOpType::MIN) return RedOpType::BAND;
  return type;
}

void combine(at::Tensor& total, const at::Tensor& part, RedOpType op) {
  switch (op) {
    case RedOpType::SUM:
    case RedOpType::AVG:
      total.add_(part);
      return;
    case RedOpType::PRODUCT:
      total.mul_(part);
      return;
    case RedOpType::MIN:
      at::minimum_out(total, total, part.to(total.scalar_type()));
      return;
    case RedOpType::MAX:
      at::maximum_out(total, total, part.to(total.scalar_type()));
      return;
    case RedOpType::BAND:
      total.bitwise_and_(part);
      return;
    case RedOpType::BOR:
      total.bitwise_or_(part);
      return;
    case RedOpType::BXOR:
      total.bitwise_xor_(part);
      return;
    default:
      throw std::runtime_error("backend mpi: this reduce op is not supported");
  }
}

}  // namespace

void reduce_in_order(const std::vector<at::Tensor>& parts, const c10d::ReduceOp& op,
                     at::Tensor result) {
  const at::ScalarType dtype = result.scalar_type();
  const bool is_half = dtype == at::kHalf || dtype == at::kBFloat16;
  at::Tensor total = parts[0].to(is_half ? at::kFloat : dtype, /*non_blocking=*/false,
                                 /*copy=*/true);
  const RedOpType type = op_for(op, dtype);
  for (std::size_t i = 1; i < parts.size(); ++i) combine(total, parts[i], type);
  if (type == RedOpType::AVG) total.div_(static_cast<double>(parts.size()));
  result.copy_(total);
}

}  // namespace lockstep::mpi
