#include "lockstep/ddp/exchange/large_gradient.h"

#include <algorithm>

#include <ATen/ScalarOps.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>

#include "lockstep/comm/internal/native_collectives.h"
#include "lockstep/ddp/exchange/gradient_view.h"
#include "lockstep/ddp/exchange/set_gradient.h"

namespace lockstep::inline internal {

bool LargeGradient::suits(const ProcessGroup& group, const ExchangeOptions& options,
                          const at::Tensor& parameter) {
  return group.shares_memory() && !options.comm_hook && parameter.is_cpu() &&
         !parameter.is_complex() && !options.converts(parameter) &&
         static_cast<std::int64_t>(parameter.nbytes()) >= kLeastBytes;
}

LargeGradient::LargeGradient(const ProcessGroup& group, const ExchangeOptions& options,
                             std::size_t index, at::Tensor parameter)
    : GradientExchange({index}),
      group_(group),
      name_(options.name),
      parameter_(std::move(parameter)),
      as_view_(options.gradient_as_bucket_view),
      chunk_elements_(std::max<std::int64_t>(bucket_bytes(group) / parameter_.element_size(), 1)),
      sum_of_squares_(options.sum_of_squares),
      flag_(group.allocate_tensor(1, parameter_.scalar_type())) {}

at::Tensor LargeGradient::allocate() const {
  return gradient_view(group_.allocate_tensor(parameter_.numel(), parameter_.scalar_type()), 0,
                       parameter_);
}

void LargeGradient::fill(std::size_t, GradientScale& scale, const at::Tensor& arrived) {
  const c10::NoGradGuard no_grad;
  input_.reset();  // of a fill before: an owner of the gradient
  output_.reset();
  const at::Tensor& gradient = parameter_.grad();
  flag_.fill_(gradient.defined() ? 1 : 0);
  const double factor = scale.of_own();
  const bool is_strided = gradient.defined() && !gradient.is_sparse();
  if (is_strided && factor == 1 && lies_as_gradient_view(gradient, parameter_)) {
    // What has a graph is not written to: the graph may have saved it.
    const bool may_be_written = is_shared(group_, gradient) && !gradient.requires_grad() &&
                                has_one_owner(gradient, arrived);
    output_ = may_be_written ? gradient : allocate();
    input_ = gradient;
    return;
  }
  input_ = output_ = allocate();
  if (!is_strided) {
    output_.zero_();
  } else if (factor == 1) {
    output_.copy_(gradient);
  } else {
    at::mul_out(output_, gradient, at::native::wrapped_scalar_tensor(factor));
  }
}

void LargeGradient::exchange(const at::Tensor& output, const at::Tensor& input, double scale,
                             const at::Tensor& squares) {
  works_.push_back(all_reduce_into(
      group_, output, input, {.op = ReduceOp::kAvg, .scale = scale, .sum_of_squares = squares},
      {.async_op = true, .name = name_}));
}

void LargeGradient::start_average(GradientScale& scale) {
  const c10::NoGradGuard no_grad;
  // In the same pieces on every rank, wherever its gradient lies.
  const at::Tensor output = flat_view(output_);
  const at::Tensor input = output_.is_same(input_) ? output : flat_view(input_);
  for (std::int64_t begin = 0; begin < output.numel(); begin += chunk_elements_) {
    const std::int64_t elements = std::min(chunk_elements_, output.numel() - begin);
    const at::Tensor chunk = output.narrow(0, begin, elements);
    exchange(chunk, output_.is_same(input_) ? chunk : input.narrow(0, begin, elements),
             scale.of_average(), sum_of_squares_);
  }
  exchange(flag_, flag_, 1, {});
}

bool LargeGradient::is_averaged() const {
  return std::all_of(works_.begin(), works_.end(),
                     [](const Work& work) { return work.is_completed(); });
}

void LargeGradient::finish() {
  for (const Work& work : works_) work.wait();
  works_.clear();
  if (parameter_.grad().defined() || flag_.item<double>() != 0) {
    set_gradient(parameter_, output_, as_view_);
  }
  input_.reset();
  output_.reset();
}

}  // namespace lockstep::inline internal
