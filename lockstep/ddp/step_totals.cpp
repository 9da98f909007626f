#include "lockstep/ddp/step_totals.h"

#include <algorithm>

namespace lockstep {

void StepTotals::start(const std::vector<double>& own) {
  const auto count = static_cast<std::int64_t>(own.size());
  if (!tensor_.defined() || tensor_.numel() != count) {
    tensor_ = group_.allocate_tensor(count, at::kDouble);
  }
  at::Tensor numbers = tensor_;
  if (!numbers.is_cpu()) numbers = numbers.to(at::kCPU);
  std::copy(own.begin(), own.end(), numbers.mutable_data_ptr<double>());
  if (!numbers.is_same(tensor_)) tensor_.copy_(numbers);
  work_ = group_.all_reduce_into(tensor_, tensor_, {.async_op = true});
  is_under_way_ = true;
}

const std::vector<double>& StepTotals::get() {
  if (is_under_way_) {
    work_.wait();
    is_under_way_ = false;
    const at::Tensor numbers = tensor_.to(at::kCPU);
    const auto* const first = numbers.const_data_ptr<double>();
    totals_.assign(first, first + numbers.numel());
  }
  return totals_;
}

}  // namespace lockstep
