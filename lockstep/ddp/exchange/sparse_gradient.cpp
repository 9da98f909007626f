#include "lockstep/ddp/exchange/sparse_gradient.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "lockstep/comm/internal/native_collectives.h"

namespace lockstep::inline internal {

SparseGradient::SparseGradient(const ProcessGroup& group, const ExchangeOptions& options,
                               std::size_t index, at::Tensor parameter)
    : GradientExchange({index}),
      group_(group),
      parameter_(std::move(parameter)),
      sum_of_squares_(options.sum_of_squares),
      counts_(
          at::empty({group.world_size()}, at::TensorOptions(at::kLong).device(group.device()))) {}

void SparseGradient::fill(std::size_t, GradientScale& scale, const at::Tensor&) {
  const c10::NoGradGuard no_grad;
  const at::Tensor& gradient = parameter_.grad();
  own_ = gradient.defined() ? gradient.detach().coalesce() : at::Tensor();
  factor_ = scale.get() / group_.world_size();
}

void SparseGradient::start_average(GradientScale&) {
  const std::int64_t count = own_.defined() ? own_._nnz() : -1;
  const at::Tensor own_count = at::empty({1}, counts_.options()).fill_(count);
  counted_ = all_gather_uncompared(group_, counts_, own_count, {.async_op = true});
}

void SparseGradient::finish() {
  const c10::NoGradGuard no_grad;
  counted_.wait();
  const at::Tensor counts = counts_.to(at::kCPU);
  const auto* const count = counts.const_data_ptr<std::int64_t>();
  const std::int64_t most = *std::max_element(count, count + counts.numel());
  if (most < 0) return;

  // Indices of the rows, then their values, each padded and gathered; rows of rows are one.
  const std::int64_t width = parameter_.numel() == 0 ? 0 : parameter_.numel() / parameter_.size(0);
  const auto on_group = at::TensorOptions().device(group_.device());
  const at::Tensor indices = at::zeros({most}, on_group.dtype(at::kLong));
  const at::Tensor values = at::zeros({most, width}, on_group.dtype(parameter_.scalar_type()));
  if (own_.defined() && own_._nnz() > 0) {
    indices.narrow(0, 0, own_._nnz()).copy_(own_._indices().select(0, 0));
    values.narrow(0, 0, own_._nnz()).copy_(own_._values().reshape({own_._nnz(), width}));
    values.mul_(factor_);
  }
  const std::int64_t ranks = group_.world_size();
  const at::Tensor all_indices = at::empty({ranks * most}, indices.options());
  const at::Tensor all_values = at::empty({ranks * most, width}, values.options());
  group_.all_gather_into_tensor(all_indices, indices);
  group_.all_gather_into_tensor(all_values, values);

  std::vector<at::Tensor> row_indices;
  std::vector<at::Tensor> rows;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::int64_t entries = std::max<std::int64_t>(count[rank], 0);
    row_indices.push_back(all_indices.narrow(0, rank * most, entries));
    rows.push_back(all_values.narrow(0, rank * most, entries));
  }
  auto shape = parameter_.sizes().vec();
  at::Tensor row_values = at::cat(rows);
  shape[0] = row_values.size(0);
  row_values = row_values.view(shape);
  const at::Tensor average =
      at::sparse_coo_tensor(at::cat(row_indices).unsqueeze(0), row_values, parameter_.sizes())
          .coalesce()
          .to(parameter_.device());
  // Every rank has all of it, so that one counts it.
  if (sum_of_squares_.defined() && group_.rank() == 0) {
    sum_of_squares_.add_(
        average._values().to(at::kDouble).square().sum().to(sum_of_squares_.device()));
  }
  parameter_.mutable_grad() = average;
  own_.reset();
}

}  // namespace lockstep::inline internal
