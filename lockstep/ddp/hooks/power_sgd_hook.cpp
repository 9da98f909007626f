#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/view_as_real.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/native_collectives.h"
#include "lockstep/ddp/exchange/gradient_view.h"
#include "lockstep/ddp/hooks.h"

namespace lockstep {

PowerSgdHook::PowerSgdHook(const PowerSgdOptions& options)
    : options_(options),
      random_(at::make_generator<at::CPUGeneratorImpl>(
          static_cast<std::uint64_t>(options.random_seed))) {
  if (options_.matrix_approximation_rank < 1) {
    throw UsageError(concat("PowerSgdHook: matrix_approximation_rank=",
                            options_.matrix_approximation_rank, " is less than 1"));
  }
  if ((options_.use_error_feedback || options_.warm_start) && options_.start_power_sgd_iter < 2) {
    throw UsageError(concat("PowerSgdHook: start_power_sgd_iter=", options_.start_power_sgd_iter,
                            " is less than 2, which error feedback and warm start need"));
  }
  if (options_.start_power_sgd_iter < 0) {
    throw UsageError(concat("PowerSgdHook: start_power_sgd_iter=", options_.start_power_sgd_iter,
                            " is negative; 0 compresses from the first step on"));
  }
  if (!(options_.min_compression_rate > 0)) {
    throw UsageError(concat("PowerSgdHook: min_compression_rate=", options_.min_compression_rate,
                            " is not a factor; give a number above 0, such as 2"));
  }
  if (!(options_.orthogonalization_epsilon >= 0 &&
        std::isfinite(options_.orthogonalization_epsilon))) {
    throw UsageError(
        concat("PowerSgdHook: orthogonalization_epsilon=", options_.orthogonalization_epsilon,
               " is not 0 or more, and finite; give 0 to orthogonalize by QR"));
  }
}

std::string PowerSgdHook::describe() const {
  return concat("power_sgd rank ", options_.matrix_approximation_rank, " from step ",
                options_.start_power_sgd_iter, " min rate ", options_.min_compression_rate,
                options_.use_error_feedback ? " error feedback" : "",
                options_.warm_start ? " warm start" : "", " epsilon ",
                options_.orthogonalization_epsilon, " seed ", options_.random_seed,
                options_.batched ? " batched" : "");
}

bool PowerSgdHook::pays(const at::Tensor& matrix) const {
  const auto [rows, columns] = std::pair(matrix.size(0), matrix.size(1));
  const double sent = static_cast<double>((rows + columns) * options_.matrix_approximation_rank);
  return sent * options_.min_compression_rate < static_cast<double>(rows * columns);
}

// Parts of the bucket as matrices; or one square matrix with a copy of all of it.
std::vector<at::Tensor> PowerSgdHook::matrices_of(BucketState& state, const HookBucket& bucket) {
  std::vector<at::Tensor> matrices;
  if (options_.batched) {
    const auto side =
        static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(bucket.buffer.numel()))));
    if (!state.square.defined()) state.square = at::empty({side, side}, bucket.buffer.options());
    const at::Tensor flat = state.square.view({-1});
    flat.narrow(0, 0, bucket.buffer.numel()).copy_(bucket.buffer);
    // The approximation of the step before has left something in the padding.
    flat.narrow(0, bucket.buffer.numel(), flat.numel() - bucket.buffer.numel()).zero_();
    matrices.push_back(state.square);
    return matrices;
  }
  for (const at::Tensor& gradient : bucket.gradients) {
    // As it lies in memory, complex numbers as pairs; whatever has one dimension is one column.
    const at::Tensor flat =
        flat_view(gradient.is_complex() ? at::view_as_real(gradient) : gradient);
    const bool is_matrix = gradient.dim() > 1 && gradient.numel() > 0;
    matrices.push_back(flat.view({is_matrix ? gradient.size(0) : -1, is_matrix ? -1 : 1}));
  }
  return matrices;
}

// Splits P and Q of all matrices off two flat tensors, so that each is averaged in one message.
std::vector<PowerSgdHook::Factors> PowerSgdHook::factors_of(
    const ProcessGroup& group, BucketState& state, const std::vector<at::Tensor>& matrices) {
  const auto rank_of = [this](const at::Tensor& matrix) {
    return std::min({matrix.size(0), matrix.size(1), options_.matrix_approximation_rank});
  };
  std::int64_t left_elements = 0;
  std::int64_t right_elements = 0;
  for (const at::Tensor& matrix : matrices) {
    left_elements += matrix.size(0) * rank_of(matrix);
    right_elements += matrix.size(1) * rank_of(matrix);
  }
  const bool is_new = !state.left.defined();
  if (is_new) {
    const at::ScalarType dtype = matrices[0].scalar_type();
    state.left = group.allocate_tensor(left_elements, dtype).zero_();
    state.right = group.allocate_tensor(right_elements, dtype).zero_();
  }
  std::vector<Factors> factors;
  left_elements = right_elements = 0;
  for (const at::Tensor& matrix : matrices) {
    const std::int64_t rank = rank_of(matrix);
    const auto take = [rank](const at::Tensor& flat, std::int64_t& offset, std::int64_t rows) {
      const at::Tensor factor = flat.narrow(0, offset, rows * rank).view({rows, rank});
      offset += rows * rank;
      return factor;
    };
    factors.push_back({.matrix = matrix,
                       .p = take(state.left, left_elements, matrix.size(0)),
                       .q = take(state.right, right_elements, matrix.size(1))});
    // From Q = 0, that of a step without gradient, there may be no way back: it would be
    // orthogonalized to fixed columns, which need not meet any of the matrix's.
    if (is_new || !options_.warm_start || !factors.back().q.any().item<bool>()) {
      at::Tensor q = at::empty({matrix.size(1), rank}, at::kFloat);
      factors.back().q.copy_(q.normal_(0, 1, random_));
    }
  }
  return factors;
}

void PowerSgdHook::orthogonalize(const at::Tensor& matrix) const {
  const double epsilon = options_.orthogonalization_epsilon;
  at::Tensor wide = matrix.scalar_type() == at::kDouble ? matrix : matrix.to(at::kFloat);
  if (epsilon == 0) {
    matrix.copy_(std::get<0>(at::linalg_qr(wide)));
    return;
  }
  for (std::int64_t i = 0; i < wide.size(1); ++i) {
    const at::Tensor column = wide.narrow(1, i, 1);
    column.div_(column.norm() + epsilon);
    if (i + 1 == wide.size(1)) break;
    const at::Tensor others = wide.narrow(1, i + 1, wide.size(1) - i - 1);
    others.sub_(column * (column * others).sum(0, /*keepdim=*/true));
  }
  if (!wide.is_same(matrix)) matrix.copy_(wide);
}

void PowerSgdHook::add_error(BucketState& state, const at::Tensor& buffer) const {
  const double scale = options_.loss_scale ? options_.loss_scale() : 1;
  if (state.error.defined()) {
    buffer.add_(state.error, scale / state.scale);
  } else {
    state.error = at::empty_like(buffer);
  }
  state.scale = scale;
  state.error.copy_(buffer);
}

// Makes of P = M·Q the average approximation's P and Q. Returns whether they are finite, the same
// on all ranks: of what is not, the next step's would be no number either.
bool PowerSgdHook::average_factors(const ProcessGroup& group, BucketState& state,
                                   const std::vector<Factors>& factors) const {
  const auto is_finite = [](const at::Tensor& values) {
    return at::isfinite(values).all().item<bool>();
  };
  if (!is_finite(state.left)) return false;
  for (const Factors& factor : factors) {
    orthogonalize(factor.p);
    at::Tensor q = factor.q;
    at::mm_out(q, factor.matrix.t(), factor.p);
  }
  start_average(group, state.right)();
  return is_finite(state.right);
}

std::function<void()> PowerSgdHook::start(const ProcessGroup& group, const HookBucket& bucket) {
  if (states_.size() <= bucket.index) states_.resize(bucket.index + 1);
  BucketState& state = states_[bucket.index];
  if (state.step++ < options_.start_power_sgd_iter) return start_average(group, bucket.buffer);

  if (options_.use_error_feedback) add_error(state, bucket.buffer);
  std::vector<at::Tensor> compressed;
  std::vector<at::Tensor> rest;
  for (const at::Tensor& matrix : matrices_of(state, bucket)) {
    (options_.batched || pays(matrix) ? compressed : rest).push_back(matrix);
  }
  std::function<void()> finish_rest = [] {};
  if (!rest.empty()) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& matrix : rest) flat.push_back(matrix.view({-1}));
    const at::Tensor joined = at::cat(flat);
    if (!state.rest.defined()) {
      state.rest = group.allocate_tensor(joined.numel(), joined.scalar_type());
    }
    state.rest.copy_(joined);
    finish_rest = start_average(group, state.rest);
  }
  std::vector<Factors> factors;
  Work summed;
  if (!compressed.empty()) {
    factors = factors_of(group, state, compressed);
    for (Factors& factor : factors) {
      orthogonalize(factor.q);
      at::mm_out(factor.p, factor.matrix, factor.q);
    }
    summed = all_reduce_into(group, state.left, state.left, {}, {.async_op = true});
  }
  elements_before_ += bucket.buffer.numel();
  for (const at::Tensor& sent : {state.rest, state.left, state.right}) {
    if (sent.defined()) elements_after_ += sent.numel();
  }
  return [this, group, bucket, &state, rest, factors, summed, finish_rest] {
    finish_rest();
    std::int64_t offset = 0;
    for (const at::Tensor& matrix : rest) {
      matrix.copy_(state.rest.narrow(0, offset, matrix.numel()).view(matrix.sizes()));
      offset += matrix.numel();
    }
    bool is_finite = true;
    if (!factors.empty()) {
      summed.wait();
      is_finite = average_factors(group, state, factors);
      for (const Factors& factor : factors) {
        at::Tensor matrix = factor.matrix;
        if (is_finite) {
          at::mm_out(matrix, factor.p, factor.q.t());
        } else {
          matrix.fill_(std::numeric_limits<double>::quiet_NaN());
        }
      }
    }
    if (options_.batched) {
      bucket.buffer.copy_(state.square.view({-1}).narrow(0, 0, bucket.buffer.numel()));
    }
    if (!is_finite) {  // Begins again.
      state.error.reset();
      state.left.reset();
    } else if (options_.use_error_feedback) {
      state.error.sub_(bucket.buffer);
      for (const at::Tensor& matrix : rest) {  // What was sent as it was has left nothing out.
        const std::int64_t begin = matrix.storage_offset() - bucket.buffer.storage_offset();
        state.error.narrow(0, begin, matrix.numel()).zero_();
      }
    }
  };
}

}  // namespace lockstep
